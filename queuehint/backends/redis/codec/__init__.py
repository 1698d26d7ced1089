"""Operations and replies as they travel to and from Redis."""
