-- The same table as in the code: once money may be captured, an order is paid, or the provider has said that it can't be.
DROP TRIGGER orders_legal_transition ON orders;
CREATE TRIGGER orders_legal_transition BEFORE UPDATE OF status ON orders FOR EACH ROW
    WHEN (NOT ((OLD.status = 'PENDING'    AND NEW.status IN ('PROCESSING', 'FAILED'))
            OR (OLD.status = 'PROCESSING' AND NEW.status IN ('PROCESSING', 'CAPTURING', 'PAID', 'FAILED'))
            OR (OLD.status = 'CAPTURING'  AND NEW.status IN ('CAPTURING', 'PAID', 'FAILED'))
            OR (OLD.status = 'PAID'       AND NEW.status = 'REFUNDED')))
    EXECUTE FUNCTION refuse_illegal_transition();

ALTER TABLE payments
    -- The charge only sets money aside; known from the claim on, whatever the settings are by now.
    ADD COLUMN two_step boolean NOT NULL DEFAULT false,
    -- The provider's name for the charge, where it has one beforehand: written down before anything is charged under it.
    ADD COLUMN provider_id text CHECK (length(provider_id) BETWEEN 1 AND 255),
    DROP CONSTRAINT payments_status_check,
    ADD CONSTRAINT payments_status_check CHECK (status IN
        ('INITIATED', 'IN_DOUBT', 'AUTHORISED', 'SUCCEEDED', 'DECLINED', 'VOIDED', 'NOT_SENT', 'REFUND_DUE', 'REFUNDED'));

ALTER TABLE provider_events
    DROP CONSTRAINT provider_events_news_check,
    ADD CONSTRAINT provider_events_news_check
        CHECK (news IN ('AUTHORISED', 'SUCCEEDED', 'DECLINED', 'VOIDED', 'REFUNDED', 'OTHER'));

-- What the buyer pays with, where the purchase says so: a name that only the provider understands.
ALTER TABLE orders ADD COLUMN payment_method text CHECK (length(payment_method) BETWEEN 1 AND 255);
