"""`purgatory pipeline`: which timeout, and which capacity, a service needs, from its journal, on Apache Spark."""
