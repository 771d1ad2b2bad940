"""An ordinary PySpark script, which does not know of Understudy.

understudy job run examples/word_count.py
spark-submit examples/word_count.py
"""

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf

SPEECH = """\
All the world's a stage, and all the men and women merely players:
they have their exits and their entrances, and one man in his time plays many parts.
"""

spark = SparkSession.builder.appName("word-count").getOrCreate()

words = spark.sparkContext.parallelize(SPEECH.split()).map(lambda word: (word.strip(".,:").lower(), 1))
counts = words.reduceByKey(lambda one, other: one + other).toDF(["word", "count"])


@udf("int")
def letters(word):
    return len(word)


for row in (
    counts.filter(col("count") > 1)
    .orderBy(col("count").desc(), "word")
    .select("*", letters("word").alias("n"))
    .collect()
):
    print(f"{row['count']} x {row['word']} ({row.n} letters)")

spark.stop()
