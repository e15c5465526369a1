"""delegraph: lower PyTorch programs to hardware backends that are installed with pip."""
