//! Permission policies: parsing, narrowing and the verdict per tool (runtimes 8.2, http-api 4.12).
