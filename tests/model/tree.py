"""What the model built, in the form in which built files are compared."""

from tests.model.dispatch import Built
from tests.support.dispatching import Content, content_of


def model_tree(built: Built) -> dict[str, Content]:
    """Name what the model built as `built_tree` names what the product built."""
    queues = {f"consumequeue/{n}": content_of(c) for n, c in built.consume_queue.items()}
    ext = {f"consumequeue_ext/{n}": content_of(c) for n, c in built.consume_queue_ext.items()}
    index = {}
    for n, file in enumerate(built.index_files):
        pages = {page: bytes(data) for page, data in file.pages.items() if any(data)}
        index[f"index/{n}"] = Content(file.size, pages)
    return queues | ext | index
