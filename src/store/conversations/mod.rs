//! Conversations: launch, attach, views and their end.
