DROP TABLE distrusted_checkpoints;
