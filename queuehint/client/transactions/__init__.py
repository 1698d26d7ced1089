"""Jobs written in a transaction of the application's own database."""
