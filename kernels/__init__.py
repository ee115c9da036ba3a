"""The real kernels behind each ``KernelCall`` family, in torch, and how they are timed; the only importer of torch.

``shape``, ``cost`` and ``errors`` are free of torch, so that a design can be made where none is installed.
"""
