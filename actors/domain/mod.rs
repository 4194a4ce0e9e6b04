//! Plain data and total transition functions.
