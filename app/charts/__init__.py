"""Charts and the pages that hold them: the only importer of altair, which is asked for by ``membound[app]``."""
