"""Float64 NumPy reference for GRPO-family losses: test material, independent of torch and of nanotriton/grpo.py.
Formulas are restated from the papers / from TRL, verl, OpenRLHF, slime, prime-rl as cited beside each function.
Every loss returns a scalar to MINIMISE. Shapes: logp/old/ref/roll/mask (B,T), adv (B,). mask is 0/1.
"""

import numpy as np


# ---- advantages -------------------------------------------------------------
def adv_group(r, mode="std1", eps=1e-4):
    r = np.asarray(r, float)
    c = r - r.mean()
    if mode == "none":
        return c  # Dr.GRPO / nanochat / prime-rl
    if mode == "std0":
        return c / (r.std(ddof=0) + eps)  # biased: nano-aha, GRPO-Zero, minimind
    if mode == "std1":
        # Bessel: TRL(1e-4) verl(1e-6) OpenRLHF(1e-9) simple_GRPO(1e-4) tiny-grpo(1e-8)
        return c / (r.std(ddof=1) + eps)
    if mode == "rloo":
        n = len(r)
        return r - (r.sum() - r) / (n - 1)
    raise ValueError(mode)


# ---- per-token surrogates ---------------------------------------------------
def ppo_clip(logp, old, A, lo=0.2, hi=0.2):  # -min(rA, clip(r)A)
    r = np.exp(logp - old)
    A = A[:, None]
    return -np.minimum(r * A, np.clip(r, 1 - lo, 1 + hi) * A)


def dual_clip(logp, old, A, lo=0.2, hi=0.2, c=3.0):  # verl vanilla: for A<0 bound loss by -cA
    L = ppo_clip(logp, old, A, lo, hi)
    A = A[:, None]
    return np.where(A < 0, np.minimum(L, -c * A), L)


# TRL `delta` (INTELLECT-2): clamp the UNclipped branch
def two_sided(logp, old, A, lo=0.2, hi=0.2, delta=3.0):
    r = np.exp(logp - old)
    A = A[:, None]
    return -np.minimum(np.minimum(r, delta) * A, np.clip(r, 1 - lo, 1 + hi) * A)


def cispo_value(logp, old, A, rmax=5.0):  # TRL: -sg(min(r,rmax)) A logp  (value)
    return -np.minimum(np.exp(logp - old), rmax) * A[:, None] * logp


def cispo_grad(logp, old, A, rmax=5.0):  # d/dlogp with the ratio detached
    return -np.minimum(np.exp(logp - old), rmax) * A[:, None]


def gspo(logp, old, A, mask, lo=3e-4, hi=4e-4):  # (B,1) seq ratio, geometric mean
    n = np.maximum(mask.sum(1), 1)
    s = np.exp(((logp - old) * mask).sum(1) / n)
    return -np.minimum(s * A, np.clip(s, 1 - lo, 1 + hi) * A)[:, None] * np.ones_like(logp)


def reinforce(logp, A):
    return -logp * A[:, None]


# ---- aggregation ------------------------------------------------------------
def agg(L, mask, mode, L_max=None, empty_rows="count"):
    n = mask.sum(1)
    tok = (L * mask).sum()
    if mode == "token":
        return tok / max(mask.sum(), 1)  # dapo (global) / bnpo (if local batch)
    if mode == "seq":  # grpo
        rows = (L * mask).sum(1) / np.maximum(n, 1)
        # TRL | verl, OpenRLHF
        return rows.mean() if empty_rows == "count" else rows[n > 0].sum() / max((n > 0).sum(), 1)
    if mode == "drgrpo":
        return tok / (L.shape[0] * L_max)
    raise ValueError(mode)


# ---- KL estimators: d = log pi - log ref, samples from pi --------------------
k1 = lambda logp, ref: logp - ref
k2 = lambda logp, ref: 0.5 * (logp - ref) ** 2
k3 = lambda logp, ref: np.exp(ref - logp) - (ref - logp) - 1


# ---- sampler/trainer mismatch ------------------------------------------------
def is_weight(old, roll, mask, mode, cmax=2.0, cmin=None):
    d = (old - roll) * mask
    if mode.startswith("seq"):
        w = np.exp(d.sum(1, keepdims=True)) * np.ones_like(d)
    else:
        w = np.exp(d)
    lo, hi = (-np.inf if cmin is None else cmin), cmax
    if mode.endswith("truncate"):
        return np.clip(w, max(lo, 0), hi)
    if mode.endswith("mask"):
        return np.where((w < lo) | (w > hi), 0.0, w)
    raise ValueError(mode)


# ---- DAPO soft overlong reward ------------------------------------------------
def soft_overlong(length, L_max, L_cache, factor=1.0):
    return min(-(length - (L_max - L_cache)) / L_cache * factor, 0.0)  # hard limit is L_max


def fd(f, x, h=1e-6):
    g = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        a, b = x.copy(), x.copy()
        a[i] += h
        b[i] -= h
        g[i] = (f(a) - f(b)) / (2 * h)
    return g
