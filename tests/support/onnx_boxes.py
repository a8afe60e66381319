"""What non_maximum_suppression computes, box by box: for the tests of milblob.onnx."""

import itertools

import numpy as np

F = np.float32


def overlap(a, b):
    """The intersection of two boxes (x and y of the centre, width, height) over their union."""
    sides = [
        max(0.0, min(a[i] + a[i + 2] / 2, b[i] + b[i + 2] / 2) - max(a[i] - a[i + 2] / 2, b[i] - b[i + 2] / 2))
        for i in (0, 1)
    ]
    common = sides[0] * sides[1]
    union = a[2] * a[3] + b[2] * b[3] - common
    return common / union if union else 0.0


def suppressed(boxes, scores, iou, threshold, most, by_class):
    """Numbers of the boxes of one image that are left, the best first.

    As coremltools' tests have it: a box is of the class of its best score. If all scores are below a threshold, the
    best box is left.
    """
    best, classes = scores.max(1), scores.argmax(1)
    left = []
    for i in np.argsort(-best, kind="stable"):
        if threshold is not None and best[i] < threshold:
            continue
        if all(overlap(boxes[i], boxes[j]) <= iou or (by_class and classes[i] != classes[j]) for j in left):
            left.append(int(i))
    if not left and threshold is not None:
        left = [int(best.argmax())]
    return left[:most]


def expected(boxes, scores, iou, threshold, most, by_class):
    """The four results, padded."""
    count = len(boxes)
    rows = np.zeros((count, most, 4), F), np.zeros((count, most, scores.shape[2]), F)
    numbers, found = np.full((count, most), -1, np.int32), np.zeros(count, np.int32)
    for b in range(count):
        left = suppressed(boxes[b].astype(np.float64), scores[b], iou, threshold, most, by_class)
        found[b] = len(left)
        rows[0][b, : len(left)], rows[1][b, : len(left)] = boxes[b, left], scores[b, left]
        numbers[b, : len(left)] = left
    return *rows, numbers, found


random = np.random.default_rng(5)
BOXES = (
    np.concatenate([random.uniform(0, 8, (2, 12, 2)), random.uniform(1, 6, (2, 12, 2))], 2).astype(np.float16).astype(F)
)
SCORES = (random.permutation(72).reshape(2, 12, 3) / 64).astype(F)


def cases(case):
    """Several images and classes; a threshold that no score reaches, that one reaches exactly, that all do; room for
    more boxes than there are; scores that are equal."""
    found = []
    for by_class, (score, most), size, classes in itertools.product(
        (False, True), ((0.25, 5), (SCORES[0].max(), 3), (9.0, 3), (-1.0, 20)), (0.1, 0.5), (1, 3)
    ):
        scores, iou, threshold = SCORES[:, :, :classes], F(size), F(score)
        options = {"iou_threshold": iou, "max_boxes": most, "per_class_suppression": by_class}

        def build(mb, boxes, scores, options=options, threshold=threshold):
            return mb.non_maximum_suppression(boxes=boxes, scores=scores, score_threshold=threshold, **options)

        def formula(boxes, scores, a=(iou, threshold, most, by_class)):
            return expected(boxes, scores, *a)

        found.append(case(build, (BOXES, scores), formula, "iOS15", "iOS16"))

        def build_last(mb, boxes, scores, options=options):
            return mb.non_maximum_suppression(boxes=boxes, scores=scores, **options)

        def formula_last(boxes, scores, a=(iou, None, most, by_class)):
            rows, points, numbers, _ = expected(boxes.swapaxes(1, 2), scores.swapaxes(1, 2), *a)
            return rows.swapaxes(1, 2), points.swapaxes(1, 2), numbers

        if threshold < 9:
            arrays = BOXES.swapaxes(1, 2).copy(), scores.swapaxes(1, 2).copy()
            found.append(case(build_last, arrays, formula_last, "iOS17"))
    equal = np.full((1, 12, 2), 0.5, F)
    found.append(
        case(
            lambda mb, boxes, scores: mb.non_maximum_suppression(
                boxes=boxes, scores=scores, iou_threshold=F(0.25), score_threshold=F(0.5), max_boxes=12
            ),
            (BOXES[:1], equal),
            lambda boxes, scores: expected(boxes, scores, F(0.25), F(0.5), 12, False),
            "iOS15",
            "iOS16",
        )
    )
    return found
