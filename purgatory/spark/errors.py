"""What the pipeline refuses."""

from purgatory.errors import PurgatoryError

__all__ = ["PipelineError"]


class PipelineError(PurgatoryError):
    """Something that the pipeline was given is not what it needs; the message names it."""
