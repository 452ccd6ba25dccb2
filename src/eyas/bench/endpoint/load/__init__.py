"""Load on endpoints: when requests begin, how they are asked, what a window of it leaves."""
