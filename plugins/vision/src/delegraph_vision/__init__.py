"""Models of timm and torchvision by name, for the command line: ``timm:resnet18``."""
