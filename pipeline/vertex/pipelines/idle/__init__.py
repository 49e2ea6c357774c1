"""Find what is paid for on Google Cloud and not used."""
