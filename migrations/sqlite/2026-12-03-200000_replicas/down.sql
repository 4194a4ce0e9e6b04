DROP TABLE actor_homes;
DROP TABLE replicas;
