"""The public names of anyformer. Written by `python tools/exports.py`; do not edit."""

from anyformer.core import And as And
from anyformer.core import Causal as Causal
from anyformer.core import Cost as Cost
from anyformer.core import CostTree as CostTree
from anyformer.core import Frame as Frame
from anyformer.core import Full as Full
from anyformer.core import Marks as Marks
from anyformer.core import MaskRule as MaskRule
from anyformer.core import Memory as Memory
from anyformer.core import Model as Model
from anyformer.core import ModelSpec as ModelSpec
from anyformer.core import Or as Or
from anyformer.core import Out as Out
from anyformer.core import Part as Part
from anyformer.core import PartSpec as PartSpec
from anyformer.core import Segment as Segment
from anyformer.core import Site as Site
from anyformer.core import Spec as Spec
from anyformer.core import Work as Work
from anyformer.core import capture as capture
from anyformer.core import cost as cost
from anyformer.core import decode as decode
from anyformer.core import detach as detach
from anyformer.core import fork as fork
from anyformer.core import nbytes as nbytes
from anyformer.core import reorder as reorder
from anyformer.data.batching.packings.auto import AutoPacking as AutoPacking
from anyformer.data.batching.packings.bucket import Bucket as Bucket
from anyformer.data.batching.packings.pack import Pack as Pack
from anyformer.data.batching.packings.rows import Rows as Rows
from anyformer.data.batching.packings.stream import Stream as Stream
from anyformer.data.checks.alignment import Alignment as Alignment
from anyformer.data.checks.duplicates import Duplicates as Duplicates
from anyformer.data.checks.empty import Empty as Empty
from anyformer.data.checks.held_out import HeldOut as HeldOut
from anyformer.data.checks.identical import Identical as Identical
from anyformer.data.checks.labels import Labels as Labels
from anyformer.data.checks.language import Language as Language
from anyformer.data.checks.lengths import Lengths as Lengths
from anyformer.data.checks.little import Little as Little
from anyformer.data.checks.no_label import NoLabel as NoLabel
from anyformer.data.checks.overlap import Overlap as Overlap
from anyformer.data.checks.spellings import Spellings as Spellings
from anyformer.data.checks.unknown import Unknown as Unknown
from anyformer.data.checks.unseen_labels import UnseenLabels as UnseenLabels
from anyformer.data.checks.words_among_numbers import WordsAmongNumbers as WordsAmongNumbers
from anyformer.data.preparation.pipeline import DataSpec as DataSpec
from anyformer.data.preparation.pipeline import prepare as prepare
from anyformer.data.sources.benchmark import Benchmark as Benchmark
from anyformer.data.sources.chat import Chat as Chat
from anyformer.data.sources.conll import Conll as Conll
from anyformer.data.sources.csv import CSV as CSV
from anyformer.data.sources.docstring_summaries import DocstringSummaries as DocstringSummaries
from anyformer.data.sources.docstrings import Docstrings as Docstrings
from anyformer.data.sources.folder import Folder as Folder
from anyformer.data.sources.gettext import Gettext as Gettext
from anyformer.data.sources.hub import Hub as Hub
from anyformer.data.sources.jsonl import JSONLines as JSONLines
from anyformer.data.sources.mixture import MixtureSource as MixtureSource
from anyformer.data.sources.number_words import NumberWords as NumberWords
from anyformer.data.sources.pairs import Pairs as Pairs
from anyformer.data.sources.parquet import Parquet as Parquet
from anyformer.data.sources.pronouns import Pronouns as Pronouns
from anyformer.data.sources.published_corpus import PublishedCorpus as PublishedCorpus
from anyformer.data.sources.python_topics import PythonTopics as PythonTopics
from anyformer.data.sources.record_file import write_records as write_records
from anyformer.data.sources.text import Text as Text
from anyformer.data.sources.toy_parses import ToyParses as ToyParses
from anyformer.data.sources.unicode_names import UnicodeNames as UnicodeNames
from anyformer.data.synthetic.adding import Adding as Adding
from anyformer.data.synthetic.anbn import AnBn as AnBn
from anyformer.data.synthetic.associative_recall import AssociativeRecall as AssociativeRecall
from anyformer.data.synthetic.copy import Copy as Copy
from anyformer.data.synthetic.dyck import Dyck as Dyck
from anyformer.data.synthetic.first_token_recall import FirstTokenRecall as FirstTokenRecall
from anyformer.data.synthetic.flip_flop import FlipFlop as FlipFlop
from anyformer.data.synthetic.future_label import FutureLabel as FutureLabel
from anyformer.data.synthetic.in_context_regression import InContextRegression as InContextRegression
from anyformer.data.synthetic.listops import ListOps as ListOps
from anyformer.data.synthetic.modular_addition import ModularAddition as ModularAddition
from anyformer.data.synthetic.parity import Parity as Parity
from anyformer.data.synthetic.reverse import Reverse as Reverse
from anyformer.data.synthetic.selective_copy import SelectiveCopy as SelectiveCopy
from anyformer.data.synthetic.sort import Sort as Sort
from anyformer.data.tokenizers.bpe import BPE as BPE
from anyformer.data.tokenizers.byte import Byte as Byte
from anyformer.data.tokenizers.character import Character as Character
from anyformer.data.tokenizers.file import File as File
from anyformer.data.tokenizers.unigram import Unigram as Unigram
from anyformer.data.tokenizers.word import Word as Word
from anyformer.data.tokenizers.wordpiece import WordPiece as WordPiece
from anyformer.errors import AnyformerError as AnyformerError
from anyformer.errors import CheckpointError as CheckpointError
from anyformer.errors import DataError as DataError
from anyformer.errors import ResourceError as ResourceError
from anyformer.errors import SpecError as SpecError
from anyformer.errors import TrainingError as TrainingError
from anyformer.evaluation.metrics.classes import ClassMetrics as ClassMetrics
from anyformer.evaluation.metrics.classes import TagMetrics as TagMetrics
from anyformer.evaluation.metrics.documents import ContextMetrics as ContextMetrics
from anyformer.evaluation.metrics.documents import LanguageMetrics as LanguageMetrics
from anyformer.evaluation.metrics.documents import PositionMetrics as PositionMetrics
from anyformer.evaluation.metrics.loss_terms import LossTermMetrics as LossTermMetrics
from anyformer.evaluation.metrics.matches import ExactMatchMetric as ExactMatchMetric
from anyformer.evaluation.metrics.numbers import NumberMetrics as NumberMetrics
from anyformer.evaluation.metrics.retrieval import RetrievalMetrics as RetrievalMetrics
from anyformer.evaluation.metrics.spans import SpanMetrics as SpanMetrics
from anyformer.evaluation.metrics.summaries import SummaryMetrics as SummaryMetrics
from anyformer.evaluation.metrics.translations import EditRateMetric as EditRateMetric
from anyformer.evaluation.metrics.translations import TranslationMetrics as TranslationMetrics
from anyformer.evaluation.metrics.word_likelihood import GuessedWordMetrics as GuessedWordMetrics
from anyformer.evaluation.metrics.word_likelihood import LikelihoodMetrics as LikelihoodMetrics
from anyformer.evaluation.yardsticks.bag_of_words import BagOfWords as BagOfWords
from anyformer.evaluation.yardsticks.bm25 import BM25 as BM25
from anyformer.evaluation.yardsticks.first_sentence import FirstSentence as FirstSentence
from anyformer.evaluation.yardsticks.frequent_tag import FrequentTag as FrequentTag
from anyformer.evaluation.yardsticks.majority import MajorityClass as MajorityClass
from anyformer.evaluation.yardsticks.n_gram import NGram as NGram
from anyformer.evaluation.yardsticks.nearest_source import NearestSource as NearestSource
from anyformer.evaluation.yardsticks.ridge import RidgeRegression as RidgeRegression
from anyformer.evaluation.yardsticks.xz import Xz as Xz
from anyformer.exporting.exporter import export as export
from anyformer.generation.beam.beam_search import Beam as Beam
from anyformer.generation.beam.penalties import GNMT as GNMT
from anyformer.generation.beam.penalties import Power as Power
from anyformer.generation.engine import Engine as Engine
from anyformer.generation.engine import Request as Request
from anyformer.generation.engine import generate as generate
from anyformer.generation.ensemble import Ensemble as Ensemble
from anyformer.generation.few_shot import FewShot as FewShot
from anyformer.generation.samplers.greedy import Greedy as Greedy
from anyformer.generation.samplers.logit_bias import LogitBias as LogitBias
from anyformer.generation.samplers.min_p import MinP as MinP
from anyformer.generation.samplers.repetition_penalty import RepetitionPenalty as RepetitionPenalty
from anyformer.generation.samplers.sample import Sample as Sample
from anyformer.generation.samplers.top_k import TopK as TopK
from anyformer.generation.samplers.top_p import TopP as TopP
from anyformer.generation.samplers.typical import Typical as Typical
from anyformer.inference.text_generator import GenerationConfig as GenerationConfig
from anyformer.interop.tokenizers.gguf import GGUF as GGUF
from anyformer.models import Block as Block
from anyformer.models import Branch as Branch
from anyformer.models import Stack as Stack
from anyformer.models.decoder import Decoder as Decoder
from anyformer.models.encoder import Encoder as Encoder
from anyformer.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from anyformer.models.quantised import Quantised as Quantised
from anyformer.objectives.both_directions import BothDirectionsObjective as BothDirectionsObjective
from anyformer.objectives.chat import ChatAnswers as ChatAnswers
from anyformer.objectives.classify import Classify as Classify
from anyformer.objectives.contrastive import Contrastive as Contrastive
from anyformer.objectives.distillation import Distillation as Distillation
from anyformer.objectives.every_exit import EveryExit as EveryExit
from anyformer.objectives.masked_words import MaskedWords as MaskedWords
from anyformer.objectives.matches.attention import AttentionMatch as AttentionMatch
from anyformer.objectives.matches.hidden import HiddenMatch as HiddenMatch
from anyformer.objectives.mixture import Mixture as Mixture
from anyformer.objectives.multiple_choice import MultipleChoice as MultipleChoice
from anyformer.objectives.next_token import NextToken as NextToken
from anyformer.objectives.permutation import PermutationLM as PermutationLM
from anyformer.objectives.prefix_lm import PrefixLM as PrefixLM
from anyformer.objectives.r_drop import RDrop as RDrop
from anyformer.objectives.regress import Regress as Regress
from anyformer.objectives.replaced_token import ReplacedToken as ReplacedToken
from anyformer.objectives.sentence_pairs import SentencePairs as SentencePairs
from anyformer.objectives.seq2seq import Seq2Seq as Seq2Seq
from anyformer.objectives.skip_gram import SkipGram as SkipGram
from anyformer.objectives.span_corruption import SpanCorruption as SpanCorruption
from anyformer.objectives.token_labels import TokenLabels as TokenLabels
from anyformer.objectives.word_order import WordOrder as WordOrder
from anyformer.optim.adafactor import Adafactor as Adafactor
from anyformer.optim.adamw import AdamW as AdamW
from anyformer.optim.keep_zeros import KeepZeros as KeepZeros
from anyformer.optim.lion import Lion as Lion
from anyformer.optim.muon import Muon as Muon
from anyformer.optim.schedules.constant import Constant as Constant
from anyformer.optim.schedules.cosine import Cosine as Cosine
from anyformer.optim.schedules.inverse_square_root import InverseSquareRoot as InverseSquareRoot
from anyformer.optim.schedules.linear import LinearSchedule as LinearSchedule
from anyformer.optim.schedules.noam import Noam as Noam
from anyformer.optim.schedules.slanted_triangular import SlantedTriangular as SlantedTriangular
from anyformer.optim.schedules.warmup_stable_decay import WarmupStableDecay as WarmupStableDecay
from anyformer.optim.sgd import SGD as SGD
from anyformer.optim.transfers.mup import MuPRates as MuPRates
from anyformer.optim.tunings.layers import LayerRates as LayerRates
from anyformer.optim.tunings.lora import LoRATuning as LoRATuning
from anyformer.parts.channels.experts import Experts as Experts
from anyformer.parts.channels.glu import GLU as GLU
from anyformer.parts.channels.identity import Identity as Identity
from anyformer.parts.channels.length_dropout import LengthDropout as LengthDropout
from anyformer.parts.channels.mlp import MLP as MLP
from anyformer.parts.channels.product_keys import ProductKeys as ProductKeys
from anyformer.parts.combine.attention_fed import AttentionFed as AttentionFed
from anyformer.parts.combine.bidirectional import Bidirectional as Bidirectional
from anyformer.parts.combine.chain import Chain as Chain
from anyformer.parts.combine.cross import Cross as Cross
from anyformer.parts.combine.extra_tokens import ExtraTokens as ExtraTokens
from anyformer.parts.combine.fast_forward import FastForward as FastForward
from anyformer.parts.combine.half_stream import HalfStream as HalfStream
from anyformer.parts.combine.init_from_encoder import InitFromEncoder as InitFromEncoder
from anyformer.parts.combine.lora import LoRA as LoRA
from anyformer.parts.combine.parallel import Parallel as Parallel
from anyformer.parts.combine.pooled_queries import PooledQueries as PooledQueries
from anyformer.parts.combine.scalar_mix import ScalarMix as ScalarMix
from anyformer.parts.combine.shared import Shared as Shared
from anyformer.parts.combine.shifted import Shifted as Shifted
from anyformer.parts.combine.shorten import Shorten as Shorten
from anyformer.parts.combine.step_embedding import StepEmbedding as StepEmbedding
from anyformer.parts.combine.summaries import Summaries as Summaries
from anyformer.parts.combine.transparent import Transparent as Transparent
from anyformer.parts.combine.unfold import Unfold as Unfold
from anyformer.parts.combine.unidirectional import Unidirectional as Unidirectional
from anyformer.parts.combine.with_positions import WithPositions as WithPositions
from anyformer.parts.embeddings.adaptive import AdaptiveEmbedding as AdaptiveEmbedding
from anyformer.parts.embeddings.factorized import Factorized as Factorized
from anyformer.parts.embeddings.matches import Matches as Matches
from anyformer.parts.embeddings.n_grams import NGrams as NGrams
from anyformer.parts.embeddings.plain import Plain as Plain
from anyformer.parts.heads.adaptive_softmax import AdaptiveSoftmax as AdaptiveSoftmax
from anyformer.parts.heads.both_directions import BothDirectionsHead as BothDirectionsHead
from anyformer.parts.heads.capped import Capped as Capped
from anyformer.parts.heads.classifier import Classifier as Classifier
from anyformer.parts.heads.hidden import Hidden as Hidden
from anyformer.parts.heads.masked_words import MaskedWordsHead as MaskedWordsHead
from anyformer.parts.heads.mixture_of_softmaxes import MixtureOfSoftmaxes as MixtureOfSoftmaxes
from anyformer.parts.heads.pooled import Pooled as Pooled
from anyformer.parts.heads.several import Several as Several
from anyformer.parts.heads.tied import Tied as Tied
from anyformer.parts.heads.token_classifier import TokenClassifier as TokenClassifier
from anyformer.parts.heads.untied import Untied as Untied
from anyformer.parts.inits.fan_in import FanIn as FanIn
from anyformer.parts.inits.fixup import FixupInit as FixupInit
from anyformer.parts.inits.mup import MuPInit as MuPInit
from anyformer.parts.inits.normal import NormalInit as NormalInit
from anyformer.parts.inits.xavier import Xavier as Xavier
from anyformer.parts.joins.add import Add as Add
from anyformer.parts.joins.fixup import FixupJoin as FixupJoin
from anyformer.parts.joins.gru_gate import GRUGate as GRUGate
from anyformer.parts.joins.replace import Replace as Replace
from anyformer.parts.joins.rezero import ReZero as ReZero
from anyformer.parts.joins.scaled_add import ScaledAdd as ScaledAdd
from anyformer.parts.masks.block_local import BlockLocal as BlockLocal
from anyformer.parts.masks.dilated import Dilated as Dilated
from anyformer.parts.masks.fixed import Fixed as Fixed
from anyformer.parts.masks.global_tokens import GlobalTokens as GlobalTokens
from anyformer.parts.masks.permutation import PermutationMask as PermutationMask
from anyformer.parts.masks.prefix import Prefix as Prefix
from anyformer.parts.masks.random_blocks import RandomBlocks as RandomBlocks
from anyformer.parts.masks.random_keys import RandomKeys as RandomKeys
from anyformer.parts.masks.strided import Strided as Strided
from anyformer.parts.masks.window import Window as Window
from anyformer.parts.mixers.additive_attention import AdditiveAttention as AdditiveAttention
from anyformer.parts.mixers.aligned import Aligned as Aligned
from anyformer.parts.mixers.attention import Attention as Attention
from anyformer.parts.mixers.byte_net import ByteNet as ByteNet
from anyformer.parts.mixers.conv import Conv as Conv
from anyformer.parts.mixers.conv_glu import ConvGLU as ConvGLU
from anyformer.parts.mixers.dynamic_conv import DynamicConv as DynamicConv
from anyformer.parts.mixers.gated_linear import GatedLinear as GatedLinear
from anyformer.parts.mixers.gru import GRU as GRU
from anyformer.parts.mixers.lightweight_conv import LightweightConv as LightweightConv
from anyformer.parts.mixers.linear_attention import LinearAttention as LinearAttention
from anyformer.parts.mixers.linformer import Linformer as Linformer
from anyformer.parts.mixers.longformer import Longformer as Longformer
from anyformer.parts.mixers.lstm import LSTM as LSTM
from anyformer.parts.mixers.luong_attention import LuongAttention as LuongAttention
from anyformer.parts.mixers.mamba import Mamba as Mamba
from anyformer.parts.mixers.mamba2 import Mamba2 as Mamba2
from anyformer.parts.mixers.memory_compressed import MemoryCompressed as MemoryCompressed
from anyformer.parts.mixers.min_gru import MinGRU as MinGRU
from anyformer.parts.mixers.multi_step_attention import MultiStepAttention as MultiStepAttention
from anyformer.parts.mixers.performer import Performer as Performer
from anyformer.parts.mixers.reformer import Reformer as Reformer
from anyformer.parts.mixers.rnn import RNN as RNN
from anyformer.parts.mixers.s4 import S4 as S4
from anyformer.parts.mixers.s4d import S4D as S4D
from anyformer.parts.mixers.segment_memory import SegmentMemory as SegmentMemory
from anyformer.parts.mixers.separable_conv import SeparableConv as SeparableConv
from anyformer.parts.mixers.synthesizer import Synthesizer as Synthesizer
from anyformer.parts.mixers.torch_module import torch_part as torch_part
from anyformer.parts.mixers.transformer_xl import TransformerXL as TransformerXL
from anyformer.parts.mixers.weighted_attention import WeightedAttention as WeightedAttention
from anyformer.parts.norms.batch import BatchNorm as BatchNorm
from anyformer.parts.norms.layer import LayerNorm as LayerNorm
from anyformer.parts.norms.none import NoNorm as NoNorm
from anyformer.parts.norms.rms import RMSNorm as RMSNorm
from anyformer.parts.norms.scale import ScaleNorm as ScaleNorm
from anyformer.parts.pools.attention import AttentionPool as AttentionPool
from anyformer.parts.pools.first import First as First
from anyformer.parts.pools.last import Last as Last
from anyformer.parts.pools.max import Max as Max
from anyformer.parts.pools.mean import Mean as Mean
from anyformer.parts.positions.alibi import Alibi as Alibi
from anyformer.parts.positions.bucketed_keys import BucketedKeys as BucketedKeys
from anyformer.parts.positions.concatenate import Concatenate as Concatenate
from anyformer.parts.positions.in_heads import InHeads as InHeads
from anyformer.parts.positions.learned import LearnedPosition as LearnedPosition
from anyformer.parts.positions.none import NoPosition as NoPosition
from anyformer.parts.positions.relative_segments import RelativeSegments as RelativeSegments
from anyformer.parts.positions.rope import Rope as Rope
from anyformer.parts.positions.shaw import Shaw as Shaw
from anyformer.parts.positions.sinusoidal import Sinusoidal as Sinusoidal
from anyformer.parts.positions.t5_bias import T5Bias as T5Bias
from anyformer.parts.positions.xl import XL as XL
from anyformer.pretrained import from_pretrained as from_pretrained
from anyformer.run import Run as Run
from anyformer.run import train as train
from anyformer.shrink.averaging import average_checkpoints as average_checkpoints
from anyformer.shrink.averaging import average_runs as average_runs
from anyformer.shrink.distilling import StudentSettings as StudentSettings
from anyformer.shrink.distilling import distil as distil
from anyformer.shrink.importances.leave_one_out import LeaveOneOut as LeaveOneOut
from anyformer.shrink.importances.magnitude import Magnitude as Magnitude
from anyformer.shrink.importances.random import RandomRanking as RandomRanking
from anyformer.shrink.importances.taylor import Taylor as Taylor
from anyformer.shrink.quantising import quantise as quantise
from anyformer.shrink.removals.heads import HeadRemoval as HeadRemoval
from anyformer.shrink.removals.layers import LayerRemoval as LayerRemoval
from anyformer.shrink.removals.neurons import NeuronRemoval as NeuronRemoval
from anyformer.shrink.shrinking import PruneSettings as PruneSettings
from anyformer.shrink.shrinking import prune as prune
from anyformer.study import Listener as Listener
from anyformer.study import Results as Results
from anyformer.study import Scaled as Scaled
from anyformer.study import StudySpec as StudySpec
from anyformer.study import Tuning as Tuning
from anyformer.study import compare as compare
from anyformer.study import scale as scale
from anyformer.training import Recipe as Recipe
from anyformer.training import Step as Step
from anyformer.training import Trainer as Trainer
from anyformer.training import Watcher as Watcher
from anyformer.training import load as load
from anyformer.training.recipes.recipe import CheckpointSpec as CheckpointSpec
from anyformer.training.recipes.recipe import EvaluateSpec as EvaluateSpec
from anyformer.training.recipes.recipe import LogSpec as LogSpec
from anyformer.training.recipes.recipe import SampleSpec as SampleSpec
from anyformer.training.recipes.recipe import TrainSpec as TrainSpec

__version__: str
__all__ = [
    "Adafactor",
    "AdamW",
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "Add",
    "Adding",
    "AdditiveAttention",
    "Alibi",
    "Aligned",
    "Alignment",
    "AnBn",
    "And",
    "AnyformerError",
    "AssociativeRecall",
    "Attention",
    "AttentionFed",
    "AttentionMatch",
    "AttentionPool",
    "AutoPacking",
    "BM25",
    "BPE",
    "BagOfWords",
    "BatchNorm",
    "Beam",
    "Benchmark",
    "Bidirectional",
    "Block",
    "BlockLocal",
    "BothDirectionsHead",
    "BothDirectionsObjective",
    "Branch",
    "Bucket",
    "BucketedKeys",
    "Byte",
    "ByteNet",
    "CSV",
    "Capped",
    "Causal",
    "Chain",
    "Character",
    "Chat",
    "ChatAnswers",
    "CheckpointError",
    "CheckpointSpec",
    "ClassMetrics",
    "Classifier",
    "Classify",
    "Concatenate",
    "Conll",
    "Constant",
    "ContextMetrics",
    "Contrastive",
    "Conv",
    "ConvGLU",
    "Copy",
    "Cosine",
    "Cost",
    "CostTree",
    "Cross",
    "DataError",
    "DataSpec",
    "Decoder",
    "Dilated",
    "Distillation",
    "DocstringSummaries",
    "Docstrings",
    "Duplicates",
    "Dyck",
    "DynamicConv",
    "EditRateMetric",
    "Empty",
    "Encoder",
    "EncoderDecoder",
    "Engine",
    "Ensemble",
    "EvaluateSpec",
    "EveryExit",
    "ExactMatchMetric",
    "Experts",
    "ExtraTokens",
    "Factorized",
    "FanIn",
    "FastForward",
    "FewShot",
    "File",
    "First",
    "FirstSentence",
    "FirstTokenRecall",
    "Fixed",
    "FixupInit",
    "FixupJoin",
    "FlipFlop",
    "Folder",
    "Frame",
    "FrequentTag",
    "Full",
    "FutureLabel",
    "GGUF",
    "GLU",
    "GNMT",
    "GRU",
    "GRUGate",
    "GatedLinear",
    "GenerationConfig",
    "Gettext",
    "GlobalTokens",
    "Greedy",
    "GuessedWordMetrics",
    "HalfStream",
    "HeadRemoval",
    "HeldOut",
    "Hidden",
    "HiddenMatch",
    "Hub",
    "Identical",
    "Identity",
    "InContextRegression",
    "InHeads",
    "InitFromEncoder",
    "InverseSquareRoot",
    "JSONLines",
    "KeepZeros",
    "LSTM",
    "Labels",
    "Language",
    "LanguageMetrics",
    "Last",
    "LayerNorm",
    "LayerRates",
    "LayerRemoval",
    "LearnedPosition",
    "LeaveOneOut",
    "LengthDropout",
    "Lengths",
    "LightweightConv",
    "LikelihoodMetrics",
    "LinearAttention",
    "LinearSchedule",
    "Linformer",
    "Lion",
    "ListOps",
    "Listener",
    "Little",
    "LoRA",
    "LoRATuning",
    "LogSpec",
    "LogitBias",
    "Longformer",
    "LossTermMetrics",
    "LuongAttention",
    "MLP",
    "Magnitude",
    "MajorityClass",
    "Mamba",
    "Mamba2",
    "Marks",
    "MaskRule",
    "MaskedWords",
    "MaskedWordsHead",
    "Matches",
    "Max",
    "Mean",
    "Memory",
    "MemoryCompressed",
    "MinGRU",
    "MinP",
    "Mixture",
    "MixtureOfSoftmaxes",
    "MixtureSource",
    "Model",
    "ModelSpec",
    "ModularAddition",
    "MuPInit",
    "MuPRates",
    "MultiStepAttention",
    "MultipleChoice",
    "Muon",
    "NGram",
    "NGrams",
    "NearestSource",
    "NeuronRemoval",
    "NextToken",
    "NoLabel",
    "NoNorm",
    "NoPosition",
    "Noam",
    "NormalInit",
    "NumberMetrics",
    "NumberWords",
    "Or",
    "Out",
    "Overlap",
    "Pack",
    "Pairs",
    "Parallel",
    "Parity",
    "Parquet",
    "Part",
    "PartSpec",
    "Performer",
    "PermutationLM",
    "PermutationMask",
    "Plain",
    "Pooled",
    "PooledQueries",
    "PositionMetrics",
    "Power",
    "Prefix",
    "PrefixLM",
    "ProductKeys",
    "Pronouns",
    "PruneSettings",
    "PublishedCorpus",
    "PythonTopics",
    "Quantised",
    "RDrop",
    "RMSNorm",
    "RNN",
    "RandomBlocks",
    "RandomKeys",
    "RandomRanking",
    "ReZero",
    "Recipe",
    "Reformer",
    "Regress",
    "RelativeSegments",
    "RepetitionPenalty",
    "Replace",
    "ReplacedToken",
    "Request",
    "ResourceError",
    "Results",
    "RetrievalMetrics",
    "Reverse",
    "RidgeRegression",
    "Rope",
    "Rows",
    "Run",
    "S4",
    "S4D",
    "SGD",
    "Sample",
    "SampleSpec",
    "ScalarMix",
    "ScaleNorm",
    "Scaled",
    "ScaledAdd",
    "Segment",
    "SegmentMemory",
    "SelectiveCopy",
    "SentencePairs",
    "SeparableConv",
    "Seq2Seq",
    "Several",
    "Shared",
    "Shaw",
    "Shifted",
    "Shorten",
    "Sinusoidal",
    "Site",
    "SkipGram",
    "SlantedTriangular",
    "Sort",
    "SpanCorruption",
    "SpanMetrics",
    "Spec",
    "SpecError",
    "Spellings",
    "Stack",
    "Step",
    "StepEmbedding",
    "Stream",
    "Strided",
    "StudentSettings",
    "StudySpec",
    "Summaries",
    "SummaryMetrics",
    "Synthesizer",
    "T5Bias",
    "TagMetrics",
    "Taylor",
    "Text",
    "Tied",
    "TokenClassifier",
    "TokenLabels",
    "TopK",
    "TopP",
    "ToyParses",
    "TrainSpec",
    "Trainer",
    "TrainingError",
    "TransformerXL",
    "TranslationMetrics",
    "Transparent",
    "Tuning",
    "Typical",
    "Unfold",
    "UnicodeNames",
    "Unidirectional",
    "Unigram",
    "Unknown",
    "UnseenLabels",
    "Untied",
    "WarmupStableDecay",
    "Watcher",
    "WeightedAttention",
    "Window",
    "WithPositions",
    "Word",
    "WordOrder",
    "WordPiece",
    "WordsAmongNumbers",
    "Work",
    "XL",
    "Xavier",
    "Xz",
    "average_checkpoints",
    "average_runs",
    "capture",
    "compare",
    "cost",
    "decode",
    "detach",
    "distil",
    "export",
    "fork",
    "from_pretrained",
    "generate",
    "load",
    "nbytes",
    "prepare",
    "prune",
    "quantise",
    "reorder",
    "scale",
    "torch_part",
    "train",
    "write_records",
]
