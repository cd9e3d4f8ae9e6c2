"""Following a training from check to check: what is measured, what is kept, when to stop; knows no trainer."""
