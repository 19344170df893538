-- Sales and their stock. The stock equation is a constraint: no statement, by whomever, can leave it broken.

-- Times cross the wire as microseconds since 1970.
CREATE FUNCTION micros(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (extract(epoch FROM at) * 1000000)::bigint;
CREATE FUNCTION from_micros(us bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN timestamptz '1970-01-01 00:00:00+00' + us * interval '1 microsecond';

CREATE TABLE sales (
    id               uuid PRIMARY KEY,
    name             text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    unit_price_minor bigint NOT NULL CHECK (unit_price_minor > 0),
    currency         text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    -- Units one buyer may hold or own at a time; NULL means no limit.
    per_buyer_limit  integer CHECK (per_buyer_limit > 0),
    -- Units one order may ask for.
    max_per_order    integer NOT NULL CHECK (max_per_order > 0),
    opens_at         timestamptz NOT NULL,
    closes_at        timestamptz CHECK (closes_at > opens_at),
    created_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sales_created ON sales (created_at, id);

-- One hot row per sale, updated once per batch and always last in its transaction. The fillfactor leaves room
-- for heap-only updates, so that the row's index entry is never touched.
CREATE TABLE inventory (
    sale_id   uuid PRIMARY KEY REFERENCES sales (id),
    quantity  integer NOT NULL,
    available integer NOT NULL,
    held      integer NOT NULL DEFAULT 0,
    sold      integer NOT NULL DEFAULT 0,
    -- Raised whenever the gate's copy of this sale becomes worthless; see docs/decisions/0003-epoch-on-the-inventory-row.md.
    epoch     bigint NOT NULL DEFAULT 1,
    CONSTRAINT inventory_available_in_range CHECK (available >= 0 AND available <= quantity),
    CONSTRAINT inventory_held_not_negative  CHECK (held >= 0),
    CONSTRAINT inventory_sold_not_negative  CHECK (sold >= 0),
    CONSTRAINT inventory_conserved          CHECK (available + held + sold = quantity)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
