"""The pages of the documentation, and the distributions that they describe."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    p
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/*.md",
        "programs/*.md",
        "core/*.md",
        "plugins/*/*.md",
    )
    for p in ROOT.glob(pattern)
]
DISTRIBUTIONS = [
    "programs",
    "core",
    "plugins/tosa_backend",
    "plugins/demo_backend",
    "plugins/devkit",
    "plugins/executorch_backend",
]
DISTRIBUTIONS += [
    "plugins/analysis",
    "plugins/engines",
    "plugins/onnx_backend",
    "plugins/coreai_backend",
    "plugins/openvino_backend",
    "plugins/quantize",
    "plugins/workers",
    "plugins/iree_backend",
    "plugins/vgf_backend",
    "plugins/ethosu_backend",
    "plugins/transformers",
    "plugins/dynamo",
    "plugins/vision",
]
GUIDES = [
    "README.md",
    "docs/README.md",
    "docs/tutorial.md",
    "docs/recipes.md",
    "docs/language-models.md",
    "docs/backend-authors.md",
    "docs/extending.md",
    "docs/from-executorch.md",
    "docs/compatibility.md",
]
GUIDES += [f"{distribution}/README.md" for distribution in DISTRIBUTIONS]
GUIDES += [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/guide/*.md"))]
TUTORIALS = [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/tutorials/*.md"))]
TUTORIALS += [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/examples/*.md"))]
GUIDES += TUTORIALS
