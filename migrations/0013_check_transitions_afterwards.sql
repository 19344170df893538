-- The same two walls, asked after the row has moved instead of before. A trigger BEFORE has each row locked by an entry of its own in the log before it
-- is updated, which was a sixth of what a transition writes. An order that may not go where it went is refused with all that its transaction did.
DROP TRIGGER orders_legal_transition ON orders;
CREATE TRIGGER orders_legal_transition AFTER UPDATE OF status ON orders FOR EACH ROW
    WHEN (NOT ((OLD.status = 'PENDING'    AND NEW.status IN ('PROCESSING', 'FAILED'))
            OR (OLD.status = 'PROCESSING' AND NEW.status IN ('PROCESSING', 'CAPTURING', 'PAID', 'FAILED'))
            OR (OLD.status = 'CAPTURING'  AND NEW.status IN ('CAPTURING', 'PAID', 'FAILED'))
            OR (OLD.status = 'PAID'       AND NEW.status = 'REFUNDED')))
    EXECUTE FUNCTION refuse_illegal_transition();

DROP TRIGGER orders_fence_rises ON orders;
CREATE TRIGGER orders_fence_rises AFTER UPDATE OF fence ON orders FOR EACH ROW
    WHEN (NEW.fence < OLD.fence) EXECUTE FUNCTION refuse_lower_fence();
