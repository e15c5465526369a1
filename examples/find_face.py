"""Find the face in a picture with P-Net, the first network of MTCNN, in int8.

    pip install pillow && pip install --no-deps facenet-pytorch scikit-image
    python examples/find_face.py face.html

facenet-pytorch has the weights, scikit-image the pictures. P-Net looks at squares of 12
pixels and gives each the probability of a face. The script prints the best square of
each backend. face.html shows the picture and these probabilities.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import delegraph
import numpy as np
import torch
from delegraph_analysis import verify_over
from PIL import Image
from torch import Tensor, nn


def data_file(package: str, name: str) -> Path:
    return Path(find_spec(package).origin).parent / "data" / name


def picture(name: str) -> Tensor:
    image = Image.open(data_file("skimage", name)).convert("RGB").resize((64, 64))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    return (pixels.contiguous() - 127.5) / 128


convolutions = [nn.Conv2d(3, 10, 3), nn.PReLU(10), nn.MaxPool2d(2, ceil_mode=True)]
convolutions += [nn.Conv2d(10, 16, 3), nn.PReLU(16), nn.Conv2d(16, 32, 3), nn.PReLU(32)]
model = nn.Sequential(*convolutions, nn.Conv2d(32, 2, 1), nn.Softmax(1)).eval()
weights = torch.load(data_file("facenet_pytorch", "pnet.pt"), weights_only=True)
# the last weights refine the position of the square, which this example leaves out
model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=False)))
astronaut = picture("astronaut.png")
others = [picture("coffee.png"), picture("chelsea.png"), astronaut.flip(3)]
quantized = delegraph.quantize(model, others, backend="tosa")
programs = {}
for backend in ("tosa", "xnnpack", "ethosu"):
    # without the chip, this computer runs the TOSA file of the NPU's program
    options = {"ethosu": {"keep_tosa": True}} if backend == "ethosu" else {}
    programs[backend] = delegraph.lower(quantized, backends=[backend], options=options)
    faces = programs[backend](astronaut)[0, 1]
    row, column = divmod(int(faces.argmax()), faces.shape[1])
    # a step is 2 pixels of 64; the picture has 512
    print(f"{backend}: a face at x = {16 * column}, y = {16 * row}")


def probability_of_face(outputs: Tensor, label: Tensor) -> float:
    return float(outputs[0, 1].max())


scores = verify_over(programs, [astronaut], probability_of_face, model=model)
scores.save(sys.argv[1])
print(scores)
