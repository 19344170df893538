-- Which request brought an order: the name under which logs, here and in front of here, tell of it.
ALTER TABLE orders ADD COLUMN request_id text CHECK (length(request_id) BETWEEN 1 AND 128);
