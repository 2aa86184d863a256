import { render } from '../src/messages/message'
import type { TextRenderer } from '../src/picture/render_panel'

/** Renders texts in English. */
export const PLAIN: TextRenderer = { render: (text) => render(text), renderLabel: (text) => render(text) }
