"""Several replicas behind a router: who may enter, who fails."""
