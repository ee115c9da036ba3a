"""What engines on one device share, and how it is divided."""
