-- What the image of Postgres runs before its first start, in the database `longhaul`: the roles of docs/operations.md.
\set owner `cat /run/secrets/owner-password`
\set api `cat /run/secrets/api-password`
\set worker `cat /run/secrets/worker-password`
\set maintenance `cat /run/secrets/maintenance-password`
\set monitor `cat /run/secrets/monitor-password`
CREATE ROLE longhaul_owner LOGIN PASSWORD :'owner';
CREATE ROLE longhaul_api LOGIN PASSWORD :'api';
CREATE ROLE longhaul_worker LOGIN PASSWORD :'worker';
CREATE ROLE longhaul_maintenance LOGIN PASSWORD :'maintenance';
CREATE ROLE longhaul_monitor LOGIN PASSWORD :'monitor';
REVOKE ALL ON DATABASE longhaul FROM PUBLIC;
GRANT CONNECT ON DATABASE longhaul TO longhaul_owner, longhaul_api, longhaul_worker, longhaul_maintenance, longhaul_monitor;
GRANT USAGE, CREATE ON SCHEMA public TO longhaul_owner;
GRANT USAGE ON SCHEMA public TO longhaul_api, longhaul_worker, longhaul_maintenance, longhaul_monitor;
