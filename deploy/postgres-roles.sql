-- What the image of Postgres runs before its first start, in the database `longhaul`: the roles of docs/operations.md.
\set owner `cat /run/secrets/owner-password`
\set runtime `cat /run/secrets/runtime-password`
\set monitor `cat /run/secrets/monitor-password`
CREATE ROLE longhaul_owner LOGIN PASSWORD :'owner';
CREATE ROLE longhaul_runtime LOGIN PASSWORD :'runtime';
CREATE ROLE longhaul_monitor LOGIN PASSWORD :'monitor';
REVOKE ALL ON DATABASE longhaul FROM PUBLIC;
GRANT CONNECT ON DATABASE longhaul TO longhaul_owner, longhaul_runtime, longhaul_monitor;
GRANT CREATE ON DATABASE longhaul TO longhaul_owner;
GRANT USAGE, CREATE ON SCHEMA public TO longhaul_owner;
GRANT USAGE ON SCHEMA public TO longhaul_runtime, longhaul_monitor;
GRANT longhaul_owner TO CURRENT_USER;
ALTER DEFAULT PRIVILEGES FOR ROLE longhaul_owner IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO longhaul_runtime;
ALTER DEFAULT PRIVILEGES FOR ROLE longhaul_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
