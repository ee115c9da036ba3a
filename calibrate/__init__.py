"""Calibration: from timed kernels to a device's fitted lanes, with their error bars.

Design (which shapes), measure, screen, fit, evaluate, publish. Everything that times or counts is the
simulator's own: ``hwmodels.timing`` and ``hwmodels.lowering``.
"""
