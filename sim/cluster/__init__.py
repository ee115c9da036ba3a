"""Several replicas behind a router: who may enter, who fails, who comes and goes, prefill and decode apart."""
