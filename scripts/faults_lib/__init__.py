"""The parts of scripts/faults: wire (sockets), servers (processes), judge (figures), run (one run), cases."""
