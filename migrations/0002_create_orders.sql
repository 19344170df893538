-- Orders: the status is the lock. Every change of it is a conditional update that names the status it expects.

CREATE TYPE order_status AS ENUM ('PENDING', 'PROCESSING', 'PAID', 'FAILED', 'REFUNDED', 'REJECTED');

CREATE TABLE orders (
    -- UUIDv7, minted by the engine before the gate is asked: time-ordered, so inserts stay at the index's right edge.
    id                 uuid NOT NULL,
    -- No foreign key: it costs a look-up per row, and the inventory row that must be updated in the same
    -- transaction proves that the sale exists.
    sale_id            uuid NOT NULL,
    -- First 128 bits of SHA-256 over buyer and idempotency key. NULL for REJECTED: a refusal is not pinned to its key.
    idempotency_digest uuid,
    amount_minor       bigint NOT NULL CHECK (amount_minor > 0),
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    claimed_at         timestamptz,
    quantity           integer NOT NULL CHECK (quantity > 0),
    -- Which charge of this order is the current one; the provider's key is made of order and attempt.
    attempt            integer NOT NULL DEFAULT 0,
    -- Raised by every claim and every take-over: a worker that slept through its claim no longer matches.
    fence              integer NOT NULL DEFAULT 0,
    -- Counts the purchases that met this row instead of making one; only there so that they wait for it.
    touch              integer NOT NULL DEFAULT 0,
    status             order_status NOT NULL DEFAULT 'PENDING',
    buyer              text NOT NULL CHECK (length(buyer) BETWEEN 1 AND 64),
    failure_reason     text CHECK (failure_reason IN
        ('declined', 'swept', 'cancelled', 'sale_cancelled', 'provider_unavailable')),
    -- The sale id is part of the key (a distribution column later) but comes second: one index answers look-ups
    -- by order id alone; see docs/decisions/0002-order-key-starts-with-the-order.md.
    CONSTRAINT orders_pkey PRIMARY KEY (id, sale_id),
    CONSTRAINT orders_idempotency UNIQUE (sale_id, idempotency_digest),
    CONSTRAINT orders_rejected_has_no_key CHECK ((status = 'REJECTED') = (idempotency_digest IS NULL)),
    CONSTRAINT orders_failed_has_reason CHECK ((status = 'FAILED') = (failure_reason IS NOT NULL))
) WITH (fillfactor = 50);

-- No index mentions a column that a transition changes: both updates of an order stay heap-only. Open orders are
-- found by a scan bounded by creation time, which this index of a few pages serves.
CREATE INDEX orders_created ON orders USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);

-- The transitions that exist, once more, below everything that could forget them. A test holds this list against
-- the engine's own table.
CREATE FUNCTION refuse_illegal_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'order % may not go from % to %', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_legal_transition';
END $$;

CREATE TRIGGER orders_legal_transition BEFORE UPDATE OF status ON orders FOR EACH ROW
    WHEN (NOT ((OLD.status = 'PENDING'    AND NEW.status IN ('PROCESSING', 'FAILED'))
            OR (OLD.status = 'PROCESSING' AND NEW.status IN ('PROCESSING', 'PAID', 'FAILED'))
            OR (OLD.status = 'PAID'       AND NEW.status = 'REFUNDED')))
    EXECUTE FUNCTION refuse_illegal_transition();

CREATE FUNCTION refuse_lower_fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the fence of order % may not go from % to %', OLD.id, OLD.fence, NEW.fence
        USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_fence_rises';
END $$;

CREATE TRIGGER orders_fence_rises BEFORE UPDATE OF fence ON orders FOR EACH ROW
    WHEN (NEW.fence < OLD.fence) EXECUTE FUNCTION refuse_lower_fence();

-- Units a buyer holds or owns in a sale that has a per-buyer limit.
CREATE TABLE buyer_allotments (
    sale_id uuid NOT NULL,
    buyer   text NOT NULL,
    used    integer NOT NULL CHECK (used >= 0),
    PRIMARY KEY (sale_id, buyer)
) WITH (fillfactor = 70);

-- Every movement of `available`, append-only: their sum per sale is the inventory row's `available`.
CREATE TABLE stock_entries (
    sale_id    uuid NOT NULL,
    order_id   uuid,
    kind       text NOT NULL CHECK (kind IN ('LIST', 'RESERVE', 'RELEASE', 'ADJUST')),
    delta      integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((kind IN ('LIST', 'ADJUST')) = (order_id IS NULL)),
    CHECK (CASE kind WHEN 'RESERVE' THEN delta < 0 WHEN 'ADJUST' THEN true ELSE delta > 0 END)
);
-- An order gives its units back once. (It takes them once because its row is inserted once, in the same statement.)
CREATE UNIQUE INDEX stock_entries_one_release ON stock_entries (sale_id, order_id) WHERE kind = 'RELEASE';
CREATE UNIQUE INDEX stock_entries_one_listing ON stock_entries (sale_id) WHERE kind = 'LIST';
CREATE INDEX stock_entries_created ON stock_entries USING brin (created_at);

-- Releases that the gate has not been told of yet; written with the transition that makes them due, deleted when done.
CREATE TABLE gate_releases (
    sale_id    uuid NOT NULL,
    order_id   uuid NOT NULL,
    -- The order never came into being: the gate forgets its idempotency key as well.
    forget     boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sale_id, order_id)
);
CREATE INDEX gate_releases_created ON gate_releases (created_at);

-- Where the scan for open orders may start: no open order is older. One row.
CREATE TABLE open_orders_horizon (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    starts_at  timestamptz NOT NULL
);
INSERT INTO open_orders_horizon (starts_at) VALUES ('-infinity');
