"""The verbs of the command line, one a file: parse, ask the library, render; no verb decides anything."""
