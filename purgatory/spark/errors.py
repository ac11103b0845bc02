"""The errors of the pipeline."""

from purgatory.errors import PurgatoryError

__all__ = ["PipelineError"]


class PipelineError(PurgatoryError):
    """The pipeline cannot use an argument, a file or an answer; the message names it."""
