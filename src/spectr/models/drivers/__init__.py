"""How one forward is called: one file per family of models, all behind one small protocol."""
