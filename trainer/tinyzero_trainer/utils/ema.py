"""The exponential moving average of length control and curriculum."""


def ema(average: float | None, value: float | None, decay: float) -> float | None:
    """The average after another value (None = not measured); `decay` is the weight of the old average.

    Example:
        >>> ema(None, 1.0, 0.75), ema(1.0, 0.0, 0.75), ema(0.5, None, 0.75)
        (1.0, 0.75, 0.5)
    """
    if average is None or value is None:
        return average if value is None else value
    return decay * average + (1 - decay) * value
