import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, i, h, layers):
        super().__init__()
        self.lstm = nn.LSTM(i, h, layers, batch_first=True)
        self.fc = nn.Linear(h, 5)

    def forward(self, x):
        out, (h, c) = self.lstm(x)
        return self.fc(out[:, -1, :])


def get_inputs():
    return [torch.randn(3, 6, 10)]


def get_init_inputs():
    return [10, 16, 2]
