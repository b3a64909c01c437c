"""The parts of round.py."""
