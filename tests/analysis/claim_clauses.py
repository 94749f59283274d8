"""What the verdict of a claim shows: claim -> row -> clauses of docs/rows.toml, for the marks of the tests."""

SHOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "ATT-04": {
        "ATT-04": (
            "sampled Var(q.k) / d_k in [0.95, 1.05], entries iid mean 0 var 1",
            "unscaled: the softmax entropy goes to 0 as d_k grows",
            "unscaled: the gradient norm collapses as d_k grows",
            "scaled: neither entropy nor gradient norm collapses",
        ),
    },
    "CLM-01": {
        "CLM-01": (
            "||dh_t/dh_k|| <= (max|phi'| sigma_max(W))^(t-k)",
            "W = 0.5 orthogonal: log-norm slope <= log 0.5 + 1e-6, in float64",
            "in the linear RNN the slope equals log 0.5",
        ),
        "CLM-02": ("sigma_max(W) > 1 is necessary, not sufficient: tanh saturates",),
    },
    "CLM-02": {
        "CLM-02": (
            "sigma_max(W) > 1 is necessary, not sufficient: tanh saturates",
            "linear RNN: a spectral radius above 1 gives exponential growth",
            "linear RNN with W = 1.5 orthogonal: slope log 1.5 to 1e-6",
            "with saturated inputs a tanh RNN need not grow",
        ),
    },
    "CLM-03": {
        "CLM-03": ("the same run stays finite with clipping",),
    },
    "CLM-04": {
        "CLM-04": (
            "||dy_T/dx_(T-s)|| over s: exponential in an RNN, flat in a Transformer",
            "at init the RNN's fitted log-slope is below -0.05 per step",
            "at init the Transformer's |log-slope| is below 0.005 per step",
        ),
    },
    "CLM-05": {
        "CLM-05": (
            "copying without attention loses accuracy as T grows at fixed d",
            "at T=40, d=64 without attention: below 60% of tokens",
            "at T=40, d=64 with attention: above 99% of tokens",
            "raising d brings the accuracy without attention back",
            "with attention the accuracy stays flat over T",
        ),
        "RNN-09": (
            "at fixed width the copy accuracy falls as T grows",
            "trains to > 99% on copying with T <= 10",
        ),
        "RNN-10": (
            "reversal or copying at T = 50 is solved to > 99%",
            "the model without attention fails there at the same width",
        ),
    },
    "CLM-06": {
        "CLM-06": ("attention: one interaction per layer at any distance",),
        "CLM-08": (
            "RNN: dependent steps grow with T at exponent 1.0",
            "Transformer: dependent steps grow with T at exponent 0.0",
        ),
        "CLM-09": (
            "breadth-first search on the layer graph finds T - 1 for the RNN",
            "breadth-first search finds 1 for attention",
            "breadth-first search finds ceil((T-1)/(k-1)) for convolution",
            "breadth-first search finds ceil(log_k T) for dilated convolution",
        ),
        "CLM-20": ("the cost of an RNN is its n sequential steps: exponent 1.0 in n",),
        "RNN-15": ("a dilated variant gives the path of logarithmic length (tree)",),
        "RNN-16": ("ceil(log_k T) layers connect positions 1 and T: path O(log_k T)",),
    },
    "CLM-07": {
        "CLM-06": (
            "RNN: |i - j| non-linear layers lie between tokens i and j",
            "attention: one interaction per layer at any distance",
            "longest path in the autograd graph: |i - j| + c for the RNN",
            "longest path in the autograd graph: constant for attention",
        ),
        "CLM-07": (
            "RNN: the depth in the graph of layer l, time t is t + l - 1",
            "attention: the depth in the graph of layer l is l at every time",
        ),
        "CLM-08": (
            "O(1) sequential steps per Transformer layer",
            "a stack takes O(n_layers) steps, fewer than an RNN's O(T)",
            "RNN: dependent steps grow with T at exponent 1.0",
            "Transformer: dependent steps grow with T at exponent 0.0",
        ),
        "CLM-20": ("the cost of an RNN is its n sequential steps: exponent 1.0 in n",),
        "CLM-26": ("no recurrent edge: no state passes from one time step to the next",),
        "VIZ-09": (
            "grid of the min number of steps for every layer l and time t",
            "grid numbers: t+l-1 for the RNN, l for attention",
        ),
    },
    "CLM-08": {
        "CLM-08": ("O(1) sequential steps per Transformer layer",),
        "CLM-14": ("convolution takes O(1) sequential steps: its outputs run in parallel",),
    },
    "CLM-10": {
        "CLM-10": (
            "convolution: k d^2 weights counted for d = 64, 128, 256",
            "RNN: 2 d^2 weights counted for d = 64, 128, 256",
            "self-attention: 4 d^2 weights counted for d = 64, 128, 256",
            "Transformer block: 12 d^2 weights counted for d = 64, 128, 256",
        ),
    },
    "CLM-11": {
        "CLM-11": (
            "convolution takes T k d^2 operations, not T k + d^2",
            "a full attention layer takes T^2 d + T d^2 with its projections",
            "RNN: log-log slopes of counted FLOPs 1 in T, 2 in d, within 0.05",
            "attention core: slopes of counted FLOPs 2 in T, 1 in d, within 0.05",
            "convolution: slopes of counted FLOPs 1 in T, 2 in d, within 0.05",
        ),
        "CLM-20": (
            "RNN operations are linear in n: FLOP slope 1 within 0.05",
            "attention core operations are quadratic in n: slope 2 within 0.05",
        ),
    },
    "CLM-12": {
        "CLM-12": (
            "MACs: feed-forward 8Td^2, attention core 2T^2d, projections 4Td^2",
            "counted FLOPs: attention core exceeds feed-forward iff T > 4 d",
            "counted FLOPs: it exceeds feed-forward plus projections iff T > 6 d",
        ),
        "CLM-13": (
            "the computed crossover is T = d, attention core alone",
            "measured MACs cross at the same T",
        ),
    },
    "CLM-14": {
        "CLM-14": (
            "covers CNN, RNN, self-attention x params, ops, steps, path",
            "convolution takes O(1) sequential steps: its outputs run in parallel",
            "the fitted exponent of each cell is within 0.1 of the claim",
        ),
    },
    "CLM-16": {
        "CLM-16": ("the Transformer pays for parallel compute with operations and memory",),
    },
    "CLM-17": {
        "CLM-08": ("a stack takes O(n_layers) steps, fewer than an RNN's O(T)",),
        "CLM-17": (
            "parameters, operations and sequential steps are linear in depth",
            "parameters: fitted slope 1.00 +- 0.02 against n_layers",
            "operations: fitted slope 1.00 +- 0.02 against n_layers",
            "sequential steps: fitted slope 1.00 +- 0.02 against n_layers",
        ),
    },
    "CLM-18": {
        "CLM-18": (
            "the task needs a lag of 200: adding problem or first-token recall",
            "the Transformer solves lag 200 above 99%",
            "a plain RNN stays near chance after as many training steps",
            "the LSTM lies between RNN and Transformer",
        ),
    },
    "CLM-21": {
        "CLM-21": (
            "training uses lengths up to 40, tests go up to 200",
            "RNN and LSTM at length 200: above 95%",
            "Transformer with absolute positions at length 200: about 50%",
        ),
    },
    "CLM-22": {
        "CLM-22": (
            "a Transformer has a weaker inductive bias than a CNN or RNN",
            "on a local-pattern task with few samples the CNN beats the Transformer",
            "the gap shrinks over 100, 1k and 10k samples",
        ),
    },
    "CLM-23": {
        "CLM-23": ("vanishing gradients: attention keeps the gradient flat over distance",),
    },
    "CLM-26": {
        "CLM-26": ("gradients from y_t to x_t' exist through attention for t' <= t",),
    },
    "CLM-27": {
        "CLM-27": (
            "the cut is made with and without residual connections",
            "mean |second difference| is lower with residuals at depth >= 20",
        ),
    },
    "CLM-28": {
        "CLM-28": ("GPT-3, N = 175e9 and D = 300e9, gives 3.14e23 FLOPs within 1%",),
    },
    "CLM-29": {
        "CLM-29": (
            "ablation on one synthetic MT: RNN, RNN+attention, attention-only",
            "all three models have equal parameter counts",
            "attention-only accuracy >= RNN+attention accuracy",
        ),
    },
    "CLM-30": {
        "CLM-30": (
            "largest batch in fixed memory falls as 1/T^2 with naive attention",
            "largest batch falls as 1/T with an RNN or flash/SDPA attention",
            "activation-memory estimate is within 20% of the measured peak",
        ),
    },
    "OPT-03": {
        "OPT-03": ("BLEU or accuracy on toy translation does not fall; both are shown",),
    },
    "POS-10": {
        "POS-10": (
            "sinusoid, learned, relative and no positions, at T_test > T_train",
            "loss against length, copy or counting: trained at 32, tested 32..256",
            "absolute positions degrade strongly with length",
            "relative positions and the RNN degrade less",
        ),
    },
    "PRE-23": {
        "CLM-24": ("unmasked y_t is a function of all of x_1..x_T",),
        "PRE-23": (
            "an encoder is not autoregressive: its states see later tokens",
            "decoder Jacobian is lower triangular: left context only",
            "encoder Jacobian is dense: context from both sides",
        ),
    },
    "PRE-24": {
        "PRE-24": (
            "100% [MASK] and 80/10/10 are trained side by side",
            "a toy probe compares their representations of unmasked tokens",
        ),
    },
    "RNN-19": {
        "ATT-12": ("a query looks values up by their keys: a content-addressed memory",),
        "RNN-19": (
            "hard: the value of the key with the largest q . k",
            "soft tends to hard as tau -> 0: max error < 1e-4 at tau = 1e-3",
        ),
    },
    "RNN-21": {
        "RNN-21": (
            "bits per character are higher at early positions of a segment",
            "segment memory shrinks that gap on synthetic long-range repeats",
        ),
    },
    "SSM-06": {
        "SSM-06": ("a sequence costs an SSM O(T), attention O(T^2)",),
    },
    "TRF-07": {
        "TRF-07": ("with F = 0 it is the identity",),
    },
    "TRF-09": {
        "TRF-09": (
            "layer norm of a sample does not depend on the rest of the batch",
            "batch norm of a sample does depend on the rest of the batch",
            "layer norm gives the same in training and evaluation",
            "batch norm differs between training and evaluation",
        ),
    },
    "XF-08": {
        "XF-08": ("the softmax matrix is approximately low-rank",),
    },
    "XF-13": {
        "XF-13": ("a local bias improves the Transformer on few local-pattern samples",),
    },
    "XF-16": {
        "XF-16": ("memory grows with slope 2.0 +- 0.15 at large n",),
    },
}
