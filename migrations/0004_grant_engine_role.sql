-- What the engine itself may do. It runs as a login that is (a member of) fluxbuy_engine, never as the owner:
-- an entry once written stays, a decided order stays decided, whatever the engine's code does.
DO $$
BEGIN
    CREATE ROLE fluxbuy_engine NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the whole cluster: another database's migration was here first
END $$;

DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO fluxbuy_engine', current_schema()); END $$;

GRANT SELECT, INSERT, UPDATE         ON sales, inventory, orders, buyer_allotments, payments, open_orders_horizon TO fluxbuy_engine;
GRANT SELECT, INSERT                 ON stock_entries, ledger_entries, provider_event_deliveries TO fluxbuy_engine;
GRANT SELECT, INSERT, UPDATE         ON provider_events TO fluxbuy_engine;
GRANT SELECT, INSERT, UPDATE, DELETE ON gate_releases, provider_tasks, dead_letters TO fluxbuy_engine;
-- To refuse a start against a schema that is not the one it was built for.
GRANT SELECT                         ON _sqlx_migrations TO fluxbuy_engine;
