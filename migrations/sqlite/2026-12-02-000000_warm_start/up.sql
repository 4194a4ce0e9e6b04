-- Provider addresses whose checkpoint was not what it said it was: none is taken or tried there until then (RUL-L-34).
CREATE TABLE distrusted_checkpoints (
    address TEXT PRIMARY KEY NOT NULL,
    until TIMESTAMP NOT NULL
);
