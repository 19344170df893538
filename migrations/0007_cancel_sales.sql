-- A sale that is called off: nothing is sold any more, what is open is released, what is paid is paid back.
ALTER TABLE sales
    ADD COLUMN cancelled_at timestamptz,
    ADD COLUMN cancellation_done_at timestamptz,
    -- One that is called off before its opening closes before it, too.
    DROP CONSTRAINT sales_check,
    ADD CONSTRAINT sales_close_after_opening CHECK (cancelled_at IS NOT NULL OR closes_at > opens_at),
    ADD CONSTRAINT sales_cancelled_is_closed CHECK (cancelled_at IS NULL OR closes_at IS NOT NULL),
    ADD CONSTRAINT sales_cancelled_before_done CHECK (cancellation_done_at IS NULL OR cancelled_at IS NOT NULL);
CREATE INDEX sales_being_cancelled ON sales (id) WHERE cancelled_at IS NOT NULL AND cancellation_done_at IS NULL;
GRANT UPDATE ON sales TO fluxbuy_engine;

-- The wall: whoever has not heard of it can't take a unit either.
ALTER TABLE inventory ADD COLUMN cancelled boolean NOT NULL DEFAULT false;
CREATE FUNCTION refuse_cancelled_sale() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'sale % is cancelled', OLD.sale_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'inventory_not_cancelled';
END $$;
CREATE TRIGGER inventory_not_cancelled BEFORE UPDATE OF available ON inventory FOR EACH ROW
    WHEN (NEW.cancelled AND NEW.available < OLD.available) EXECUTE FUNCTION refuse_cancelled_sale();
