-- Each statement is a vertex of revenue.py's pipeline; {name} is the result of the vertex or table of that name.

-- vertex: paid
SELECT id, customer, CAST(day AS DATE) AS day, cents
FROM {orders}
WHERE state = 'paid';

-- vertex: by_country
SELECT country, date_trunc('MONTH', day) AS month, count(*) AS orders, sum(cents) / 100 AS revenue
FROM {paid} JOIN {customers} ON {paid}.customer = {customers}.id
GROUP BY ALL;

-- vertex: report
SELECT country, date_format(month, 'yyyy-MM') AS month, orders, CAST(revenue AS DECIMAL(10, 2)) AS revenue,
  CAST(100 * revenue / sum(revenue) OVER (PARTITION BY month) AS INT) AS percent
FROM {by_country}
ORDER BY month, revenue DESC;
