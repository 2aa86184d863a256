/** The state of the page: its link, its selection, its trace and the trace that it is compared with. */

import { ApiError, errorText, LostServerError, type AnalysisCatalogue, type AnalysisDescription, type Client, type FieldDescription, type Image, type Model, type State } from './api'
import { parseAxes } from './axes'
import { CLOUD_LAYERS, DEFAULT_LINK, formatLink, isUndoable, linkFault, outOfRange, parseLink, type CloudLayer, type Link, type PairSide, type Side, type ToggledEdit } from './link'
import { LANGUAGES, pageText, type MessageKey } from './messages'
import { ENGLISH, render, renderParts, type Catalogue, type Parameter, type Text } from './messages/message'
import { OpenTrace } from './open_trace.svelte'
import { DARK, LIGHT, type Theme } from './palette'
import { PAGE_HASH, type UrlHash } from './url_hash'

/** A step as the page labels it: embed, L3 attn, L3 mlp. A layer whose attention has no step of its own is L3. */
export function stepLabel(step: string, steps: string[]): string {
  const layer = /^L\d+/.exec(step)?.[0]
  if (!layer) return step
  if (/mid/.test(step)) return `${layer} attn`
  if (/cross/.test(step)) return `${layer} cross`
  return steps.some((other) => other.startsWith(`${layer}.`) && /mid/.test(other)) ? `${layer} mlp` : layer
}

/** Used when no example is stored. It has about 60 tokens, enough for every line of the story. */
const SAMPLE_TEXT = 'The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, and the sea was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the'

/** Milliseconds between two attempts to reach a server that does not respond. */
const RECONNECT_INTERVAL = 1000

/** What a trace is about. */
type Subject = Pick<Link, 'model' | 'text' | 'target' | 'cloud' | 'window' | 'edits'>
interface TraceOptions { untrained?: boolean; lines?: string[]; window?: number; target?: string; signal?: AbortSignal }

export class Studio {
  link = $state<Link>({ ...DEFAULT_LINK })
  hovered = $state<number | null>(null)
  state = $state.raw<State | null>(null)
  analysisCatalogue = $state.raw<AnalysisCatalogue | null>(null)
  models = $state.raw<Model[]>([])
  trace = $state.raw<OpenTrace | null>(null)
  comparison = $state.raw<OpenTrace | null>(null)
  error = $state.raw<Text>('')
  /** A value of the link that is wrong. */
  linkError = $state.raw<Text>('')
  /** Why the last model or text was refused. The page has returned to the one before. */
  refusal = $state.raw<Text>('')
  /** The only language of a file that plays one text and has no views; '' on a whole page. */
  fileLanguage = ''
  /** The lines of the story that exist for the open text. Some read the source of an encoder-decoder. */
  get storyLines(): AnalysisCatalogue['story'] { return (this.analysisCatalogue?.story ?? []).filter((line) => !line.reads_source || this.info?.pair?.side === 'target') }
  /** Whether the page can give the tour, which needs the weights of the heads. */
  get hasTour(): boolean { return this.fileLanguage === '' }
  /** Draws the cloud at a position of the playhead, once there is a cloud. */
  drawCloud = $state.raw<((canvas: HTMLCanvasElement, playhead: number, size: { width: number; height: number; ratio: number }) => void) | null>(null)
  /** Whether the server does not respond. */
  isLost = $state(false)
  /** What is being opened: 'trace', or the source of a model. */
  openingName = $state('')
  /** Position of the scrubber while it moves to `link.step`. */
  playhead = $state(0)
  playing = $state(false)
  speed = $state(1)
  /** The image of a head whose separated and merged pairs are shown. */
  pairImage = $state<Image>('query')
  dark = $state(false)
  reducedMotion = $state(false)
  /** The language on the screen and its catalogue. */
  private shown = $state.raw<{ language: string; catalogue: Catalogue }>({ language: 'en', catalogue: ENGLISH })
  /** A new page or a new text plays once when its cloud arrives. */
  private playsOnce = false
  private traceRequest = ''
  /** The request that the shown trace answers. */
  private shownRequest = $state('')
  /** The model and text that opened last, and the request for them after a refusal. */
  private openedSubject: Subject | null = null
  private returnRequest = ''
  private pendingTrace = new AbortController()
  private comparisonRequest = ''
  /** Ids of two traces of different models whose clouds have the same coordinates. */
  private tracesInOneSpace = $state('')
  /** The edits before each change of them, which `undoEdit` restores. */
  private pastEdits: ToggledEdit[][] = []

  constructor(readonly client: Client, readonly exportedTrace: string | null, readonly urlHash: UrlHash = PAGE_HASH) {
    this.readLink()
    if (client.source) client.source.onLost = () => void this.reconnect()
  }

  // Texts

  /** The language of the link, else of the browser, else English. */
  private get selectedLanguage(): string { return [this.fileLanguage, this.link.language, navigator.language.slice(0, 2)].find((language) => language in LANGUAGES) ?? 'en' }
  get language(): string { return this.shown.language }
  get htmlLang(): string { return LANGUAGES[this.language]!.lang }
  /** Loads the catalogue of the selected language and shows it. The page stays in its language when that fails. */
  async loadLanguage(): Promise<void> {
    const language = this.selectedLanguage
    if (language === this.shown.language) return
    try {
      const catalogue = await LANGUAGES[language]!.load()
      if (language === this.selectedLanguage) this.shown = { language, catalogue }
    } catch (error) {
      this.showError(error)
    }
  }
  /** A text of the page itself. */
  message = (key: MessageKey, parameters: Record<string, Parameter> = {}): string => pageText(key, parameters, this.shown.catalogue)
  /** A text from the server, in the language of the page. */
  render = (text: Text): string => render(text, this.shown.catalogue)
  /** A text from the server, split at its commands. */
  renderParts = (text: Text) => renderParts(text, this.shown.catalogue)
  /** A label of a panel. A token of the text is not translated. */
  renderLabel = (text: Text): string => (typeof text === 'string' && this.tokenTexts.has(text) ? text : this.render(text))
  private tokenTexts = $derived(new Set(this.trace?.info?.tokens.map((token) => token.shown)))
  /** The name of an analysis or of a field, with spaces instead of underscores. */
  displayName = (name: Text): string => this.render(typeof name === 'string' ? name.replaceAll('_', ' ') : name)
  /** The definition of a field and its unit. */
  definition = (field: FieldDescription | undefined): string => (field ? `${this.render(field.definition)}${field.unit ? ` (${this.render(field.unit)})` : ''}` : '')
  get theme(): Theme { return this.dark ? DARK : LIGHT }

  // Selection

  get info() { return this.trace?.info ?? null }
  stepLabel = (step: string, steps: string[] = this.info?.steps ?? []): string => this.render(stepLabel(step, steps))
  get stepName(): string { return this.info?.steps[this.link.step] ?? '' }
  /** Highlighted tokens: the hovered one, else the pinned ones. */
  get highlighted(): Set<number> {
    const tokens = this.hovered !== null ? [this.hovered] : [this.link.token, this.link.second]
    return new Set(tokens.filter((token) => token !== null))
  }
  get edits(): ToggledEdit[] { return this.link.edits.filter((edit) => !edit.off) }
  /** What the trace is compared with. Edits are compared with the state before them by default. */
  get compareWith(): string { return this.link.compareWith || (this.edits.length ? 'before' : '') }
  /** Whether the comparison is with another model. */
  get comparesModels(): boolean { return this.compareWith === 'untrained' || this.compareWith.startsWith('model:') }
  /** Whether both clouds of a comparison are in one space: two texts, or two models that use the same coordinates. */
  get sharesSpace(): boolean { return !this.comparesModels || (!!this.comparison && !!this.trace && this.tracesInOneSpace === `${this.comparison.id} ${this.trace.id}`) }
  async findCommonSpace(comparison: OpenTrace, trace: OpenTrace): Promise<void> {
    if (!this.comparesModels || !this.client.isLive) return
    try {
      const { shared } = await this.client.commonSpace(comparison.id, trace.id)
      this.tracesInOneSpace = shared ? `${comparison.id} ${trace.id}` : ''
    } catch (error) {
      this.showError(error)
    }
  }
  /** The trace without the edits, if it is the comparison. */
  get traceBeforeEdits(): OpenTrace | null { return this.edits.length && this.compareWith === 'before' && this.comparison?.info ? this.comparison : null }
  get side(): Side { return this.traceBeforeEdits ? this.link.side : 'after' }
  /** Requests a value before the edits, after them, or both; `subtract` computes the difference. */
  async forSelectedSide<T>(request: (id: string) => Promise<T>, subtract: (after: T, before: T) => T): Promise<T> {
    const [after, before, side] = [this.trace!.id, this.traceBeforeEdits?.id, this.side]
    if (!before || side === 'after') return request(after)
    return side === 'before' ? request(before) : subtract(...(await Promise.all([request(after), request(before)])))
  }
  analysis = (name: string): AnalysisDescription | undefined => this.analysisCatalogue?.analyses.find((analysis) => analysis.name === name)

  // Edits

  changeEdits(edits: ToggledEdit[]): void {
    this.pastEdits.push([...this.link.edits])
    this.navigate({ edits })
  }
  /** Restores the edits before the last change of them. Without one, as after a link, it removes the last edit. */
  undoEdit(): void {
    const edits = this.pastEdits.pop() ?? this.link.edits.slice(0, -1)
    if (JSON.stringify(edits) !== JSON.stringify(this.link.edits)) this.navigate({ edits })
  }
  /** Whether the output of a head is replaced by its mean over the text. */
  isSilenced = (layer: number, head: number): boolean => this.edits.some((edit) => edit.layer === layer && edit.head === head && edit.operation === 'ablate')
  /** Silences a head, or lets it speak again. */
  toggleSilence(layer: number, head: number): void {
    const others = this.link.edits.filter((edit) => edit.layer !== layer || edit.head !== head || edit.operation !== 'ablate')
    this.changeEdits(this.isSilenced(layer, head) ? others : [...others, { layer, head, part: 'both', operation: 'ablate' }])
  }

  // Link

  navigate(change: Partial<Link>): void {
    Object.assign(this.link, change)
    this.urlHash.write(`#${formatLink(this.link)}`, isUndoable(change))
  }

  /** Corrects the link, without an entry in the history. */
  replaceLink(change: Partial<Link>): void {
    Object.assign(this.link, change)
    this.urlHash.write(`#${formatLink(this.link)}`, false)
  }

  readLink(): void {
    Object.assign(this.link, parseLink(this.urlHash.read()))
    this.pastEdits = []
    this.linkError = linkFault(this.urlHash.read()) ?? ''
    this.playhead = this.link.step
  }

  /** Reports a layer, head, token or step of the link that the trace does not have, and deselects it. */
  checkSelection(): void {
    const fault = this.info && !this.oldResults && outOfRange(this.link, this.info)
    if (!fault) return
    this.linkError = fault.message
    this.navigate(fault.change)
    if (fault.change.step !== undefined) this.playhead = fault.change.step
  }

  isShown = (layer: CloudLayer): boolean => this.link.show.includes(layer)
  setShown(layer: CloudLayer, on: boolean): void {
    this.navigate({ show: CLOUD_LAYERS.filter((name) => (name === layer ? on : this.isShown(name))) })
  }

  /** Runs the model on another text, with a target for an encoder-decoder, and starts at its first step. */
  run(text: string, target = ''): void {
    this.playing = false
    this.playsOnce = true
    this.playhead = 0
    this.navigate({ text, target, cloud: 'target', window: null, token: null, second: null, step: 0 })
  }

  /** Shows the other cloud of an encoder-decoder. */
  showCloud(cloud: PairSide): void {
    this.playing = false
    this.navigate({ cloud, window: null, token: null, second: null })
  }
  /** The target whose cloud is selected; '' for the source, and for models of one text. */
  get target(): string { return this.link.cloud === 'target' ? this.link.target : '' }
  /** The text as the link and the example have it: for an encoder-decoder, the source. */
  get sourceText(): string { return this.link.text || this.exampleText }
  /** The same relative depth in the other cloud of a pair. */
  private keepDepth(from: OpenTrace | null, to: OpenTrace): void {
    const [before, after] = [from?.info?.pair, to.info?.pair]
    if (!before || !after || before.side === after.side) return
    const step = Math.round((this.link.step * (after.steps[after.side] - 1)) / (before.steps[before.side] - 1))
    this.replaceLink({ step })
    this.playhead = step
  }

  /** Opens another window of a long text. */
  openWindow(window: number): void {
    this.navigate({ window, token: null, second: null })
  }

  pin(token: number, second: boolean): void {
    if (second && this.link.token !== null) this.navigate({ second: this.link.second === token ? null : token })
    else this.navigate({ token: this.link.token === token ? null : token, second: null })
  }

  clearSelection(): void {
    this.hovered = null
    this.navigate({ token: null, second: null, layer: null, head: null })
  }

  moveStep(change: number): void {
    const last = (this.info?.steps.length ?? 1) - 1
    this.navigate({ step: Math.max(0, Math.min(last, this.link.step + change)) })
  }

  moveHead(change: number): void {
    if (!this.info) return
    const { layers, heads } = this.info
    const { layer, head } = this.link
    const current = layer === null || head === null ? (change > 0 ? -1 : layers * heads) : layer * heads + head
    const next = Math.max(0, Math.min(layers * heads - 1, current + change))
    this.navigate({ layer: Math.floor(next / heads), head: next % heads })
  }

  togglePlaying(play = !this.playing): void {
    if (play && this.link.step >= (this.info?.steps.length ?? 1) - 1) {
      this.navigate({ step: 0 })
      this.playhead = 0
    }
    this.playing = play
  }

  /** Plays the first cloud of a new page or text, unless the reader prefers reduced motion. */
  playOnce(): void {
    if (this.playsOnce && !this.reducedMotion) this.togglePlaying(true)
    this.playsOnce = false
  }

  // Loading

  async start(): Promise<void> {
    this.readLink()
    this.playsOnce = !/[#&]step=/.test(this.urlHash.read()) && !this.link.edits.length
    try {
      this.state = await this.client.state()
      this.models = this.state.models
      void this.client.analysisCatalogue().then((catalogue) => (this.analysisCatalogue = catalogue), this.showError)
      void this.client.models().then(({ models }) => (this.models = models), () => undefined)
    } catch (error) {
      this.showError(error)
    }
  }

  showError = (error: unknown): void => {
    const isAbort = error instanceof Error && error.name === 'AbortError'
    if (!isAbort && !(error instanceof LostServerError)) this.error = errorText(error)
  }

  /** Waits until the server responds again. A new server does not know the trace, so it is opened again. */
  async reconnect(): Promise<void> {
    if (this.isLost) return
    this.isLost = true
    while (this.isLost) {
      await new Promise((resolve) => setTimeout(resolve, RECONNECT_INTERVAL))
      try {
        const state = await this.client.state()
        this.isLost = false
        this.state = state
        this.models = (await this.client.models()).models
      } catch (error) {
        if (error instanceof LostServerError) continue
        this.isLost = false
        this.showError(error)
      }
    }
    await this.reopen()
  }

  /** Opens the trace and the comparison again. */
  async reopen(): Promise<void> {
    this.close()
    this.traceRequest = this.comparisonRequest = ''
    await Promise.all([this.openTrace(), this.openComparison()])
  }

  /** Cancels what the server computes for this page. */
  close(): void {
    this.pendingTrace.abort()
    void this.trace?.close()
    void this.comparison?.close()
  }

  /** Opens a trace of the text with the edits. Without a text it opens the stored example. */
  private async requestTrace(model: string, text: string, edits: ToggledEdit[], { signal, ...options }: TraceOptions = {}): Promise<OpenTrace> {
    const isDefault = !edits.length && !options.untrained && !options.target && (!model || model === this.state!.model)
    if (this.exportedTrace) return new OpenTrace(this.client, this.exportedTrace, '').listen()
    const { example } = this.state!
    if (isDefault && !text && example) return new OpenTrace(this.client, example, '').listen()
    if (!text) await this.loadExampleText()
    const body = { model: model || this.state!.model, text: text || this.exampleText, edits: edits.map(({ off: _, ...edit }) => edit), ...options }
    const { id, job } = await this.client.trace(body, signal)
    return new OpenTrace(this.client, id, job).listen()
  }
  private exampleText = ''
  private async loadExampleText(): Promise<void> {
    const { example } = this.state!
    if (this.exampleText || this.exportedTrace) return
    const shown = this.trace?.id === example ? this.trace?.info : null
    this.exampleText = example ? (shown ?? (await this.client.traceInfo(example))).text : SAMPLE_TEXT
  }

  private get windowOption(): { window?: number } { return this.link.window === null ? {} : { window: this.link.window } }

  private get targetOption(): { target?: string } { return this.target ? { target: this.target } : {} }

  /** What the link selects: a text in a model with edits. */
  private get selectedRequest(): string { return JSON.stringify([this.selectedModel, this.link.text, this.link.window, this.edits, this.target]) }
  /** The trace on the screen, if it has the selected model and text and no edits. */
  private get shownUneditedTrace(): OpenTrace | null { return this.trace?.info && this.shownRequest === JSON.stringify([this.selectedModel, this.link.text, this.link.window, [], this.target]) ? this.trace : null }
  get selectedModel(): string { return this.link.model || this.state?.model || '' }
  modelName = (id: string): Text => this.models.find((model) => model.id === id)?.name ?? id
  /** Why the results on the screen do not belong to the selected model and text; '' if they do. */
  get oldResults(): string {
    if (!this.state || !this.trace || !this.client.isLive || this.shownRequest === this.selectedRequest) return ''
    const [shownModel, ...shownText] = JSON.parse(this.shownRequest || '[""]') as [string, ...unknown[]]
    if (shownModel === this.selectedModel) return this.message(shownText[0] === this.link.text && shownText[1] === this.link.window && shownText[3] === this.target ? 'old_edits' : 'old_text')
    return this.message('old_model', { shown: this.modelName(shownModel), selected: this.modelName(this.selectedModel) })
  }

  async openTrace(): Promise<void> {
    if (!this.state) return
    const request = this.selectedRequest
    if (request === this.traceRequest) return
    this.traceRequest = request
    this.error = ''
    if (request !== this.returnRequest) this.refusal = ''
    const model = this.models.find(({ id }) => id === this.selectedModel)
    this.openingName = model && !model.ready && this.link.model ? this.render(model.name) : 'trace'
    this.pendingTrace.abort()
    const controller = (this.pendingTrace = new AbortController())
    void this.trace?.close() // a new text does not wait for the analyses of this one
    try {
      const trace = await this.requestTrace(this.link.model, this.link.text, this.edits, { ...this.windowOption, ...this.targetOption, signal: controller.signal })
      if (this.trace?.info) await Promise.all([trace.arrived, this.project(trace, this.link.axes, this.link.space, this.traceBeforeEdits)])
      if (controller.signal.aborted) await trace.close()
      controller.signal.throwIfAborted()
      this.keepDepth(this.trace, trace)
      this.trace = trace
      this.shownRequest = request
      const { text, target, cloud, window, edits } = this.link
      this.openedSubject = { model: this.link.model, text, target, cloud, window, edits }
      if (model && !model.ready && this.client.isLive) this.models = (await this.client.models()).models
    } catch (error) {
      if (controller !== this.pendingTrace) return
      this.traceRequest = ''
      if (error instanceof ApiError && !(error instanceof LostServerError)) this.returnToOpenedSubject(error)
      else this.showError(error)
    }
    this.openingName = ''
  }

  /** Reports why a model or text was refused and returns to the one before. A first visit leaves out one part of its link after another. */
  private returnToOpenedSubject(error: ApiError): void {
    const refused = this.selectedRequest
    this.replaceLink(this.openedSubject ?? this.smallerSubject)
    this.returnRequest = this.selectedRequest
    if (refused === this.returnRequest) this.showError(error)
    else this.refusal ||= errorText(error)
  }
  private get smallerSubject(): Partial<Subject> {
    const { edits, target, window, model } = this.link
    return edits.length ? { edits: [] } : target ? { target: '' } : window !== null ? { window: null } : model ? { model: '' } : { text: '' }
  }

  async openComparison(): Promise<void> {
    if (!this.state) return
    const { model, text } = this.link
    const compareWith = this.compareWith
    const request = JSON.stringify([compareWith, compareWith && [model, text, this.link.window, this.target]])
    if (request === this.comparisonRequest) return
    this.comparisonRequest = request
    void this.comparison?.close()
    this.comparison = null
    if (!compareWith) return
    const valueAfter = (prefix: string) => compareWith.slice(prefix.length)
    try {
      if (compareWith === 'before' && this.shownUneditedTrace) return void (this.comparison = this.shownUneditedTrace)
      const trace = compareWith.startsWith('text:') ? await this.requestTrace(model, this.target ? text : valueAfter('text:'), this.edits, { lines: [], ...(this.target ? { target: valueAfter('text:') } : {}) })
        : compareWith.startsWith('model:') ? await this.requestTrace(valueAfter('model:'), text, [], { lines: [], ...this.windowOption })
        : await this.requestTrace(model, text, [], { lines: [], ...this.windowOption, ...this.targetOption, ...(compareWith === 'untrained' ? { untrained: true } : {}) })
      if (request === this.comparisonRequest) this.comparison = trace
      else await trace.close()
      if (compareWith.startsWith('model:')) this.models = (await this.client.models()).models
    } catch (error) {
      this.comparisonRequest = ''
      this.showError(error)
    }
  }

  /** Projects a trace onto the axes of the link, or onto those of `axesOwner`. Axes of another text run the model on it. */
  async project(trace: OpenTrace, axes: string, space: string, axesOwner: OpenTrace | null = null): Promise<void> {
    try {
      const parsed = parseAxes(axes)
      const ownAxes = axesOwner && axesOwner.id !== trace.id ? `text:${axesOwner.id}/${axes}` : axes
      await trace.project(parsed.kind === 'text' ? await this.axesOfText(parsed.text) : ownAxes, space)
    } catch (error) {
      this.showError(error)
      const isRefused = error instanceof ApiError && !(error instanceof LostServerError)
      if (isRefused && !axesOwner && axes !== DEFAULT_LINK.axes) {
        this.linkError = errorText(error)
        this.replaceLink({ axes: DEFAULT_LINK.axes })
      }
    }
  }
  private async axesOfText(text: string): Promise<string> {
    const { id } = await this.client.trace({ model: this.link.model || this.state!.model, text, edits: [], lines: [] })
    return `text:${id}`
  }

  async cancel(): Promise<void> {
    this.pendingTrace.abort()
    await this.trace?.close()
    this.error = this.message('cancelled')
  }

  async openModel(source: string): Promise<void> {
    this.openingName = source
    this.error = ''
    try {
      const { model } = await this.client.openModel(source)
      this.models = (await this.client.models()).models
      const id = typeof model === 'string' ? model : (model?.id ?? this.models.find(({ name }) => name === source)?.id)
      if (id) this.navigate({ model: id, target: '', window: null, edits: [], layer: null, head: null })
    } catch (error) {
      this.showError(error)
    }
    this.openingName = ''
  }
}
