"""Long multiplication written out on one line, as a solution or as a fallible attempt."""

import random

SLIP_RATE = 0.25
"""How often a product or the sum of an attempt is off by one in one digit: often, or reinforcement learning would find
nothing left to mend."""


def work_out(num1: int, num2: int, slips: random.Random | None = None) -> str:
    """A completion that multiplies `num1` by each digit of `num2` and adds the products up, two numbers at a time.

    A sum of three numbers in one step is what a small model never learns: SmolLM2-135M multiplied 3 × 3 digits with
    82% accuracy, and all that was left were lost carries.

    Args:
        num1: first factor.
        num2: second factor.
        slips: decides where the work goes wrong; None = nowhere. The answer is always what the work led to.

    Example:
        >>> print(work_out(123, 405))
        123*5+123*400=615+49200=49815
        <answer>49815</answer>
        >>> print(work_out(123, 456))
        123*6+123*50+123*400=738+6150+49200=6888+49200=56088
        <answer>56088</answer>
    """
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(num2))) if digit != "0"] or [0]
    terms = [_slip(num1 * part, slips) for part in parts]
    steps = ["+".join(f"{num1}*{part}" for part in parts), "+".join(map(str, terms))]
    while True:
        terms[:2] = [_slip(sum(terms[:2]), slips)]
        steps.append("+".join(map(str, terms)))
        if len(terms) == 1:
            return f"{'='.join(steps)}\n<answer>{terms[0]}</answer>"


def _slip(number: int, slips: random.Random | None) -> int:
    if slips is None or slips.random() >= SLIP_RATE:
        return number
    one_digit = 10 ** slips.randrange(len(str(number)))
    return number + slips.choice((-one_digit, one_digit))
