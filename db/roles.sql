-- What the role analyst may do: connect, and read the views of the schema analysis. GRANTs are the boundary; the
-- settings at the end are defaults for people, which they can undo. Run by db.roles, one statement at a time.

REVOKE CREATE, TEMPORARY ON DATABASE {database} FROM PUBLIC;
GRANT CONNECT ON DATABASE {database} TO analyst;
REVOKE ALL ON SCHEMA public FROM PUBLIC;

REVOKE ALL ON SCHEMA keyhole FROM PUBLIC;
GRANT USAGE ON SCHEMA analysis TO analyst;
GRANT SELECT ON ALL TABLES IN SCHEMA analysis TO analyst;

-- The owner may cancel an analyst's statements, and cannot become analyst.
GRANT analyst TO {owner} WITH INHERIT TRUE, SET FALSE;

ALTER ROLE analyst LOGIN NOINHERIT CONNECTION LIMIT 30;
-- A role may change its own settings and password; every upgrade puts them back.
ALTER ROLE analyst RESET ALL;
ALTER ROLE analyst SET default_transaction_read_only = on;
ALTER ROLE analyst SET statement_timeout = '30s';
ALTER ROLE analyst SET idle_in_transaction_session_timeout = '60s';
ALTER ROLE analyst SET idle_session_timeout = '10min';
ALTER ROLE analyst SET search_path = analysis;

-- For a superuser only: a sort or a function in FROM could else fill the disk within the time limit, and DO blocks
-- would run, with no more rights than analysts have. The limit is one of each process.
ALTER ROLE analyst SET temp_file_limit = '1GB';
REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC;
GRANT USAGE ON LANGUAGE plpgsql TO {owner};
