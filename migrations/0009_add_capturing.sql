-- A provider that charges in two steps: money that is set aside (authorised) is taken by a capture, which is repeated until it is
-- answered. Alone in its migration: a new value of a type can be used only after the transaction that added it.
ALTER TYPE order_status ADD VALUE 'CAPTURING' AFTER 'PROCESSING';
