"""Operations and their purgatory. Needs the standard library alone."""
