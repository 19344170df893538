-- The inbox of webhooks. The tables of this name that were made before have never been written to.
DROP TABLE provider_event_deliveries;
DROP TABLE provider_events;

-- An event once, however often it is delivered.
CREATE TABLE provider_events (
    provider     text NOT NULL,
    event_id     text NOT NULL CHECK (length(event_id) BETWEEN 1 AND 255),
    -- The provider's word for what it is.
    kind         text NOT NULL,
    -- What that means here.
    news         text NOT NULL CHECK (news IN ('SUCCEEDED', 'DECLINED', 'VOIDED', 'REFUNDED', 'OTHER')),
    -- The charge that it is about; there is no such order for one that comes early, or that isn't ours.
    order_id     uuid,
    attempt      integer,
    amount_minor bigint,
    currency     text,
    code         text,
    -- Text, byte for byte: jsonb would refuse what a provider may well send, such as \u0000.
    body         text NOT NULL,
    -- DUE: to be applied to its order, at due_at. The others are the end of it.
    state        text NOT NULL DEFAULT 'DUE' CHECK (state IN ('DUE', 'APPLIED', 'NO_CHANGE', 'IGNORED', 'GIVEN_UP')),
    deliveries   integer NOT NULL CHECK (deliveries > 0),
    tries        integer NOT NULL DEFAULT 0,
    last_error   text,
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at   timestamptz,
    CONSTRAINT provider_events_once PRIMARY KEY (provider, event_id),
    CONSTRAINT provider_events_settled CHECK ((state = 'DUE') = (settled_at IS NULL)),
    CHECK ((order_id IS NULL) = (attempt IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX provider_events_due ON provider_events (due_at) WHERE state = 'DUE';
CREATE INDEX provider_events_order ON provider_events (order_id) WHERE order_id IS NOT NULL;

-- Every delivery that was verified, append-only: how often the provider repeats itself, and after how long.
CREATE TABLE provider_event_deliveries (
    provider    text NOT NULL,
    event_id    text NOT NULL,
    kind        text NOT NULL,
    request_id  text NOT NULL,
    received_at timestamptz NOT NULL
);
CREATE INDEX provider_event_deliveries_event ON provider_event_deliveries (provider, event_id, received_at);
CREATE INDEX provider_event_deliveries_received ON provider_event_deliveries USING brin (received_at);

GRANT SELECT, INSERT, UPDATE ON provider_events TO fluxbuy_engine;
GRANT SELECT, INSERT ON provider_event_deliveries TO fluxbuy_engine;
