"""How sure a number is: intervals around what was measured."""
