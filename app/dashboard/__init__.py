"""The dashboard, the only importer of Streamlit: pages that ask, show and explain what is worked out below them."""
